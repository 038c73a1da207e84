"""A ledger of submissions, and the board that is computed from their samples."""
