"""What a person typed that cannot be done; printed as one line, exit code 1."""

from __future__ import annotations


class CommandError(ValueError):
    """Says what to change."""
