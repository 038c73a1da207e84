"""Show results in a browser: one HTML page of runs, a server for running ones, the board."""
