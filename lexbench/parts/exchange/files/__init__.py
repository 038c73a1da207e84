"""Finished cells in the formats of other programs: one module a format, each with `files(cells, about)`."""
