"""The version of lexbench, for records and the package."""

__version__ = "0.1.0"
