"""PART=kernels: the tests of all Triton kernels, compiled, then each kernel's time on real shapes against torch."""

from __future__ import annotations

import itertools
import subprocess
import sys

from benchmarks.figures import Figure
from benchmarks.gpu import attention, experts, small_kernels
from benchmarks.gpu.machine import DRY, Results, limits
from benchmarks.gpu.wheels import ROOT


def main() -> int:
    results = Results("kernels")
    if not DRY:
        results.measure("tests", lambda: [Figure("failed_runs_of_tests", run_tests(), "runs", "<=", 0)])
    results.measure("limits", limits)
    for case in itertools.chain(attention.cases(), small_kernels.cases(), experts.cases()):
        results.measure(case.name, case.figures)
    return results.finish()


def run_tests() -> int:
    """How many of the two runs of tests fail: those of the kernels, in parallel, and those that need the GPU alone."""
    files = sorted((ROOT / "tests" / "engine").rglob("test_*.py"))
    kernels = [str(path) for path in files if path.name.startswith("test_triton_")]
    alone = [str(path) for path in files if "mark.gpu" in path.read_text(encoding="utf-8")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    runs = [*command, "-n", "8", "-m", "not gpu", *kernels], [*command, "-m", "gpu", *alone]
    return sum(subprocess.run(run, cwd=ROOT, check=False).returncode != 0 for run in runs)


if __name__ == "__main__":
    sys.exit(main())
