"""Errors that are the user's to fix: each message names the flag, file or field and says what to do."""

from __future__ import annotations


class DSparkError(Exception):
    """Base of the errors this package reports without a traceback."""


class ConfigError(DSparkError, ValueError):
    """A flag, a combination of flags or a configuration file that cannot work."""


class ContractError(DSparkError, RuntimeError):
    """The installed engine is not the one this package was written against."""
