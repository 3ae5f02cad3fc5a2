"""PART=kernels: the tests of all Triton kernels, compiled, then each kernel's time on real shapes against torch."""

from __future__ import annotations

import itertools
import subprocess
import sys
import traceback

from benchmarks.figures import Figure
from benchmarks.gpu import attention, small_kernels
from benchmarks.gpu.machine import DRY, finish, limits
from benchmarks.gpu.wheels import ROOT


def main() -> int:
    failed = 0 if DRY else run_tests()
    results = limits()
    for case in itertools.chain(small_kernels.cases(), attention.cases()):
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
    """1 when a test of the kernels fails on this GPU."""
    tests = sorted(str(path) for path in (ROOT / "tests" / "engine").glob("test_triton_*.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "8", "--dist", "worksteal", "-p", "no:cacheprovider", *tests]
    return int(subprocess.run(command, cwd=ROOT, check=False).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
