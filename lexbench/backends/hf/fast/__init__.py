"""Save time with equal answers; `backend.fast=false` switches all of it off."""
