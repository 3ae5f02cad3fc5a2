"""PART=kernels: the tests of all Triton kernels, compiled, then each kernel's time on real shapes against torch."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.figures import Figure
from benchmarks.gpu import attention, small_kernels
from benchmarks.gpu.machine import DRY, finish, limits
from benchmarks.gpu.wheels import ROOT


def main() -> int:
    failed = 0 if DRY else run_tests()
    results = [Figure("failed_test_runs", failed, "runs", "<=", 0), *limits()]
    for case in (*small_kernels.cases(), *attention.cases()):
        results += case.figures()
        print(case.name, "done", flush=True)
    return finish("kernels", results)


def run_tests() -> int:
    """1 when a test of the kernels fails on this GPU."""
    tests = sorted(str(path) for path in (ROOT / "tests" / "engine").glob("test_triton_*.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "8", "--dist", "worksteal", "-p", "no:cacheprovider", *tests]
    return int(subprocess.run(command, cwd=ROOT, check=False).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
