"""``blade_operator``: parses the command line, runs one command, and reports an error in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from blade_operator.cli.arguments import parse
from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.errors import LocalError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (default: of the process); returns the exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except (LocalError, CommandError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # e.g. piped into head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
