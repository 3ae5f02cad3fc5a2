"""Command lines on which a mistyped flag is an error that names the nearest known one."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence


def parse_strictly(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """``parser.parse_args``, with a suggestion for an unknown flag; exits with 2 as argparse does."""
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        known = [flag for action in parser._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        parser.error(f"unknown argument {unknown[0]}" + (f"; did you mean {near[0]}?" if near else ""))
    return namespace


def positive_int(text: str) -> int:
    """An argparse type: a whole number of at least 1."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number
