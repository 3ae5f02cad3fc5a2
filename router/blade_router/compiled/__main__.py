"""Compile the hot path: ``python -m blade_router.compiled``. Without a C compiler it says so, and does not fail."""

import argparse
import sys
from pathlib import Path

from blade_router.compiled.build import BuildError, build, compile_into, compiler
from blade_router.compiled.sources import find


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m blade_router.compiled", description="Compile the router's hot path."
    )
    parser.add_argument("--check", action="store_true", help="only say whether it is: the exit status is 1 if not")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.into is not None:
        compile_into(options.into)
        return
    if options.check:
        found = find()
        print(f"the router's hot path is {'interpreted' if found is None else f'compiled: {found}'}")
        sys.exit(found is None)
    if compiler() is None:
        print("the router's hot path stays interpreted: there is no C compiler with Python's headers (gcc)")
        return
    try:
        print(f"the router's hot path is compiled: {build()}")
    except BuildError as error:
        sys.exit(f"the router's hot path cannot be compiled: {error}")


if __name__ == "__main__":
    main()
