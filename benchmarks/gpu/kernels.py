"""PART=kernels: the tests of all Triton kernels, compiled, then each kernel's time on real shapes against torch."""

from __future__ import annotations

import itertools
import subprocess
import sys
import traceback

from benchmarks.figures import Figure
from benchmarks.gpu import attention, experts, small_kernels
from benchmarks.gpu.machine import DRY, finish, limits
from benchmarks.gpu.wheels import ROOT


def main() -> int:
    failed = 0 if DRY else run_tests()
    results = limits()
    for case in itertools.chain(small_kernels.cases(), attention.cases(), experts.cases()):
        try:
            figures = list(case.figures())
        except Exception:  # the others are worth knowing still
            traceback.print_exc()
            failed += 1
            continue
        print(*figures, sep="\n", flush=True)
        results += figures
    return finish("kernels", [Figure("failed_runs", failed, "runs", "<=", 0), *results])


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
