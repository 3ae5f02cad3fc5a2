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
    "layers": {"_rms_norm_kernel", "_activate_kernel", "_rope_write_kv_kernel"},
    "caches": {"_rms_norm_kernel", "_activate_kernel", "_rope_write_kv_kernel", "pack_rows"},
    "families": {"_rms_norm_kernel", "_activate_kernel", "_layer_norm_kernel"},
    "step": {
        *("_gather_inputs_kernel", "_clear_kernel", "_count_kernel", "_penalties_kernel", "_thresholds_kernel"),
        *("_best_of_piece_kernel", "_best_piece_kernel", "_mark_invalid_kernel"),
    },
    "latent": {"_rms_norm_kernel", "_rope_write_latent_kernel"},
    "experts": {"_route_kernel", "sort_by_expert", "grouped_linear", "weighted_sum"},
    "linear": {"_one_row_kernel", "_few_rows_kernel"},
}
CHOSEN = {"hopper": ["layers", "step", "experts"], "mi300": ["caches", "families", "latent", "linear"]}
"""Each part on one of the two."""
PRODUCTS = {"grouped_linear", "_few_rows_kernel"}
SHARED_MEMORY = {"hopper": 227 << 10, "mi300": 64 << 10}
"""What products on tensor cores may have; the others make do with the smaller one on both."""


def test_each_part_is_chosen_once() -> None:
    assert sorted(part for parts in CHOSEN.values() for part in parts) == sorted(KERNELS)


@pytest.mark.parametrize("target", CHOSEN)
def test_chosen_operators_compile(target: str, tmp_path: Path) -> None:
    compile_operators(target, CHOSEN[target], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("target", CHOSEN)
def test_operators_compile(target: str, tmp_path: Path) -> None:
    compile_operators(target, list(KERNELS), tmp_path)


def compile_operators(target: str, parts: list[str], cache: Path) -> None:
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    # What PYTHONPATH has already stays: on a GPU machine the packages under test may be there and nowhere else.
    packages = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": packages}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "engine_support.compile_operators", target, *parts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kernel["kernel"] for kernel in compiled} == set().union(*(KERNELS[part] for part in parts))
    for kernel in compiled:
        product = kernel["kernel"] in PRODUCTS
        assert kernel["tensor_cores"] == product
        assert kernel["shared"] <= (SHARED_MEMORY[target] if product else 64 << 10)
