"""Errors that the user can mend, apart from bugs of lexbench."""


class ConfigError(ValueError):
    """A mistake in a setting, an argument or a file of the user: one line with noun, rule, value and remedy.

    The command line shows the line and ends with exit code 2. Any other exception is a bug of lexbench, but `Refused`,
    OSError and MemoryError.
    """


class FetchError(ConfigError):
    """A checkpoint of the hub or of a package is not here, and cannot be had now."""
