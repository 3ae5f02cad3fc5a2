"""Name of this program as its user types it, for messages that suggest a command."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAME = "blade_operator"


def program() -> str:
    """``blade_operator`` where PATH leads to this very program, else its path: relative when below this folder."""
    own = Path(sys.executable).with_name(NAME)
    if not os.access(own, os.X_OK):
        return NAME
    found = shutil.which(NAME)
    if found is not None and os.path.samefile(found, own):
        return NAME
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)
