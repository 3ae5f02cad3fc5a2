"""How commands that write a folder end when they fail."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Final

from blade_llm.models.errors import ModelFilesError

Failure = ModelFilesError | OSError | KeyboardInterrupt
"""What such a command catches."""
FAILURES: Final = (ModelFilesError, OSError, KeyboardInterrupt)
KEPT: Final = "; what is complete is kept, the same command continues"


def end_with(program: str, failure: Failure, output_dir: Path, *, kept: bool) -> int:
    """Say on stderr, in a line, why ``program`` has not made ``output_dir``; returns the exit code: 130 for an
    interrupt, else 1. ``kept``: whether the same command goes on with what was begun, which is said of failures that
    it may help against."""
    after = KEPT if kept else ""
    if isinstance(failure, ModelFilesError):
        said = str(failure)
    elif isinstance(failure, KeyboardInterrupt):
        said = f"stopped{after}"
    else:
        said = f"no space left for {output_dir}" if failure.errno == errno.ENOSPC else str(failure)
        said += after
    print(f"{program}: {said}", file=sys.stderr)
    return 130 if isinstance(failure, KeyboardInterrupt) else 1
