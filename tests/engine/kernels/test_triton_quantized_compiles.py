"""The products with quantised weights compile for GPUs that this machine does not have, within shared memory and
registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SHARED_MEMORY = {"hopper": 227 << 10, "mi300": 64 << 10}
PRODUCTS = {"multiply", "multiply_int8", "multiply_float8"}
OTHERS = {"sum_splits", "write_floats", "round_group", "scale_sums"}
ONE_OF_EACH = ("w4", "w8a8")
"""Layers that need each kernel once. Registers and wide loads are known of Hopper alone."""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("target", "layers"), [("hopper", ()), ("mi300", ONE_OF_EACH), pytest.param("mi300", (), marks=pytest.mark.soak)]
)
def test_products_with_quantised_weights_compile(target: str, layers: tuple[str, ...], tmp_path: Path) -> None:
    # What PYTHONPATH has already stays: on a GPU machine the packages under test may be there and nowhere else.
    packages = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": packages}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "engine_support.compile_quantized", target, *layers]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    without_float8 = set() if target == "hopper" else {"multiply_float8"}
    assert {kernel["kernel"] for kernel in compiled} == (PRODUCTS | OTHERS) - without_float8
    for kernel in compiled:
        assert kernel["shared"] <= SHARED_MEMORY[target], kernel
        assert kernel["tensor_cores"] == (kernel["kernel"] in PRODUCTS), kernel
        assert kernel["spilled"] == 0, kernel
        if kernel["kernel"] in PRODUCTS and target == "hopper" and "odd" not in kernel["form"]:
            assert kernel["wide"], kernel
