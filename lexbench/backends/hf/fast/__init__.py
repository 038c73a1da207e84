"""What only saves time, and may be switched off whole (`backend.fast=false`) with equal answers."""
