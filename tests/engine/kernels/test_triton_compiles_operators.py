"""The operators' kernels compile for GPUs that this machine does not have: the interpreter forgives what a compiler
does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

KERNELS = {
    "_rms_norm_kernel",
    "_activate_kernel",
    "_layer_norm_kernel",
    "_rope_write_kv_kernel",
    "_rope_write_latent_kernel",
    "_gather_inputs_kernel",
    "_clear_kernel",
    "_count_kernel",
    "_penalties_kernel",
    "_thresholds_kernel",
    "_best_of_piece_kernel",
    "_best_piece_kernel",
    "_mark_invalid_kernel",
    "_route_kernel",
    "sort_by_expert",
    "grouped_linear",
    "weighted_sum",
    "_one_row_kernel",
    "pack_rows",
    "_few_rows_kernel",
}
PRODUCTS = {"grouped_linear", "_few_rows_kernel"}
SHARED_MEMORY = {"hopper": 227 << 10, "mi300": 64 << 10}
"""What products on tensor cores may have; the others make do with the smaller one on both."""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("target", ["hopper", "mi300"])
def test_operators_compile(target: str, tmp_path: Path) -> None:
    # What PYTHONPATH has already stays: on a GPU machine the packages under test may be there and nowhere else.
    packages = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": packages}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "engine_support.compile_operators", target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kernel["kernel"] for kernel in compiled} == KERNELS
    for kernel in compiled:
        product = kernel["kernel"] in PRODUCTS
        assert kernel["tensor_cores"] == product
        assert kernel["shared"] <= (SHARED_MEMORY[target] if product else 64 << 10)
