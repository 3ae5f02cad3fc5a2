"""Errors of commands: printed as one line, with exit code 1."""

from __future__ import annotations


class CommandError(ValueError):
    """A command cannot be executed; the message says what to change."""


class Changed(CommandError):
    """An object has changed since it was read."""
