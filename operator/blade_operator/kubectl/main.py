"""``kubectl-llm``, which kubectl runs as ``kubectl llm``. Exit codes are kubectl's: 1 for every mistake."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from blade_operator.kubectl.arguments import make_parser, split_words
from blade_operator.kubectl.running import run_command

_ANYWHERE: Final = frozenset({"-n", "--namespace", "--context", "--kubeconfig"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (default: of the process); returns the exit code."""
    typed = list(sys.argv[1:] if argv is None else argv)
    if typed[:1] == ["__complete"]:
        from blade_operator.kubectl.completion import print_candidates

        return print_candidates(typed[1:])
    own, words = split_words(typed)
    try:
        options = make_parser().parse_args(behind_command(own))
    except SystemExit as end:
        return 1 if end.code else 0
    return run_command(options, words)


def behind_command(argv: list[str]) -> list[str]:
    """``argv`` with the options of kubectl's that stand before the command moved behind all: kubectl takes them
    anywhere."""
    place = 0
    while place < len(argv) and (name := argv[place].partition("=")[0]) in _ANYWHERE:
        place += 1 if name != argv[place] else 2
    return argv[place:] + argv[:place]


if __name__ == "__main__":
    sys.exit(main())
