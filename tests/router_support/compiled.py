"""Processes in which the router is compiled, or is not."""

import os
import subprocess
import sys

from blade_router.compiled.sources import SWITCH


def imported(switch: str, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that imports the router in a new process; ``switch``: compiled or not."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, SWITCH: switch},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
