"""The products of adapters compile for GPUs that this machine does not have, within shared memory and registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SHARED_MEMORY = {"hopper": 227 << 10, "mi300": 64 << 10}


SOME = ("qkv 64 bf16", "up 4096 bf16", "odd 64 bf16", "qkv 64 fp32")
"""Few and many tokens, sizes that nothing divides, products without tensor cores. Registers and wide loads are known of
Hopper alone."""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("target", "forms"), [("hopper", ()), ("mi300", SOME), pytest.param("mi300", (), marks=pytest.mark.soak)]
)
def test_products_of_adapters_compile(target: str, forms: tuple[str, ...], tmp_path: Path) -> None:
    # What PYTHONPATH has already stays: on a GPU machine the packages under test may be there and nowhere else.
    packages = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": packages}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "engine_support.compile_lora", target, *forms]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kernel["form"] for kernel in compiled} >= set(forms)
    assert {kernel["kernel"] for kernel in compiled} == {"sort_by_expert", "find_tiles", "shrink", "expand"}
    for kernel in compiled:
        product, form = kernel["kernel"] in ("shrink", "expand"), kernel["form"].split()
        assert kernel["shared"] <= SHARED_MEMORY[target]
        if len(form) == 3:  # activations and adapters of one type, as they are by default
            assert kernel["spilled"] == 0, kernel
        if product and len(form) == 3 and form[2] != "fp32":
            assert kernel["tensor_cores"]
        if product and target == "hopper" and form[0] != "odd":
            assert kernel["wide"], kernel
