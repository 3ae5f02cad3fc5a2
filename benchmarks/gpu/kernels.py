"""PART=kernels: the tests of all Triton kernels, compiled, then each kernel's time on real shapes against torch.
``GPU_TESTS=0``: without the tests."""

from __future__ import annotations

import itertools
import os
import sys

from benchmarks.figures import Figure
from benchmarks.gpu import attention, experts, small_kernels
from benchmarks.gpu.machine import DRY, Results, limits
from benchmarks.gpu.suites import failed_runs, files_with


def main() -> int:
    results = Results("kernels")
    if not DRY and os.environ.get("GPU_TESTS") != "0":
        results.measure("tests", lambda: [Figure("failed_runs_of_tests", run_tests(), "runs", "<=", 0)])
    results.measure("limits", limits)
    for case in itertools.chain(attention.cases(), small_kernels.cases(), experts.cases()):
        results.measure(case.name, case.figures)
    return results.finish()


def run_tests() -> int:
    """How many of the two runs of tests fail: those of the kernels, in parallel, and those that need the GPU alone."""
    kernels, alone = files_with("triton_interpreter"), files_with("mark.gpu")
    return failed_runs(["-n", "8", "-m", "not gpu", *kernels], ["-m", "gpu", *alone])


if __name__ == "__main__":
    sys.exit(main())
