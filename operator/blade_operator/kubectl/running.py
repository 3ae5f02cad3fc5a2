"""Runs one command of either program, and reports its error in one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.errors import LocalError
from blade_operator.command_line import safe


def run_command(options: argparse.Namespace, words: Sequence[str] = ()) -> int:
    """The exit code of the command that ``options`` name. ``words``: those for the program that it runs, behind --."""
    if words and not hasattr(options, "words"):
        print("error: this command takes nothing behind --", file=sys.stderr)
        return 1
    options.words = list(words)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except (LocalError, CommandError) as error:
        print(f"error: {safe(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # e.g. piped into head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
