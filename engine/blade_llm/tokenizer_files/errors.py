"""What can be wrong with a tokenizer's files."""

from __future__ import annotations

from typing import Final

MOST_UNNAMED: Final = 65_536
"""Ids without a token of their own that a conversion fills up; more of them are a mistake in the file."""


class TokenizerFormatError(ValueError):
    """Files that are missing, broken, or of a form that is not read; the message names the file and what to do."""
