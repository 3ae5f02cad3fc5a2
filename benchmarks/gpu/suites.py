"""Which tests are run on a GPU, and how."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from benchmarks.gpu.wheels import ROOT

RANKS = "parallel"
"""The folder of tests about ranks."""


def files_with(*texts: str, of_ranks: bool = False) -> list[str]:
    """The engine's test files that contain any of ``texts``, about ranks or about all else."""
    found = sorted((ROOT / "tests" / "engine").rglob("test_*.py"))
    wanted = [path for path in found if (path.parent.name == RANKS) == of_ranks]
    return [str(path) for path in wanted if any(text in path.read_text(encoding="utf-8") for text in texts)]


def failed_runs(*runs: Sequence[str]) -> int:
    """How many of the runs of pytest, each with these arguments, fail."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return sum(subprocess.run([*command, *run], cwd=ROOT, check=False).returncode != 0 for run in runs)
