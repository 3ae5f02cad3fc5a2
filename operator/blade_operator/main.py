"""``blade_operator``: parses the command line, runs one command, and reports an error in one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blade_operator.cli.arguments import parse
from blade_operator.kubectl.arguments import add_commands, split_words
from blade_operator.kubectl.running import run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (default: of the process); returns the exit code."""
    own, words = split_words(list(sys.argv[1:] if argv is None else argv))
    return run_command(parse(own, add_commands), words)


if __name__ == "__main__":
    sys.exit(main())
