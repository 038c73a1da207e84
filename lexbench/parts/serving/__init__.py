"""Name and compare what other software computes: identify, fingerprint, parity of backends."""
