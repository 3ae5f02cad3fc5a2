"""``python -m blade_llm.kernels.native build``: compile the native operators ahead, for an image without a compiler."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from blade_llm.kernels.native import build


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m blade_llm.kernels.native", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("build", help="compile the library")
    command.add_argument("--output", type=Path, default=build.PREBUILT, help="where to put it (default: the package)")
    arguments = parser.parse_args(argv)
    try:
        print(build.prebuild(arguments.output))
    except (build.BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
