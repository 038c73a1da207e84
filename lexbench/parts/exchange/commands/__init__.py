"""Commands of the part exchange."""
