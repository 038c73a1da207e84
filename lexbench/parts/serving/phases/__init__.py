"""Faults of a served model that bite by the residue or the edge of a prompt's length."""
