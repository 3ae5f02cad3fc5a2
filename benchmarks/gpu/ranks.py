"""PART=ranks: what a divided model computes, on as many GPUs as there are.

On one: ranks and stages as threads against transformers, every family among them; Triton kernels at the shapes of a
rank, launched and replayed; NCCL's collectives by a group of one, and in CUDA graphs. On two or more also NCCL between
ranks, their models and servers, and ranks that hang or die. Without a GPU the tests are only collected.
"""

from __future__ import annotations

import sys

from benchmarks.figures import Figure
from benchmarks.gpu.machine import DRY, Results
from benchmarks.gpu.suites import failed_runs, files_with


def main() -> int:
    results = Results("ranks")
    results.measure("tests", lambda: [Figure("failed_runs_of_tests", run_tests(), "runs", "<=", 0)])
    return results.finish()


def run_tests() -> int:
    """How many runs of tests fail: of one."""
    how = ["--collect-only"] if DRY else ["-n", "4"]
    return failed_runs([*how, *files_with("triton_interpreter", "mark.gpu", of_ranks=True)])


if __name__ == "__main__":
    sys.exit(main())
