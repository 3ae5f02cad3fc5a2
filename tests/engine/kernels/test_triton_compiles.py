"""The attention kernels compile for GPUs that this machine does not have, within their shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FORMS = [f"{graph}{form}" for form in ("prefill", "decode", "combine") for graph in ("", "captured_")]
FORMS += [f"{kind}{form}" for kind in ("options_", "wide_", "latent_") for form in ("prefill", "decode", "combine")]
FORMS += ["tree_prefill", "short_prefill", "captured_short_prefill", "short_combine", "captured_short_combine"]
FORMS += ["captured_tree_prefill", "captured_tree_short_prefill"]
FORMS += ["int8_prefill", "int8_decode", "int4affine_prefill", "fp8_decode", "mixed_decode"]
QUANTIZED = ("int8_", "int4affine_", "fp8_", "mixed_")
CHOSEN = {
    "hopper": (
        *("prefill", "captured_decode", "combine", "options_decode", "wide_prefill", "latent_decode", "latent_combine"),
        *("tree_prefill", "captured_short_prefill", "short_combine", "captured_tree_short_prefill"),
        *("int8_prefill", "fp8_decode", "mixed_decode"),
    ),
    "mi300": (
        *("decode", "captured_prefill", "captured_combine", "options_prefill", "options_combine", "wide_decode"),
        *("wide_combine", "latent_prefill", "short_prefill", "captured_tree_prefill", "captured_short_combine"),
        *("int4affine_prefill", "int8_decode"),
    ),
}
"""Each form on one of the two."""


def test_each_form_is_chosen_once() -> None:
    assert sorted(form for forms in CHOSEN.values() for form in forms) == sorted(FORMS)


@pytest.mark.parametrize("target", CHOSEN)
def test_chosen_forms_of_attention_compile(target: str, tmp_path: Path) -> None:
    compile_attention(target, list(CHOSEN[target]), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("target", CHOSEN)
def test_attention_compiles(target: str, tmp_path: Path) -> None:
    compile_attention(target, FORMS, tmp_path)


def compile_attention(target: str, forms: list[str], cache: Path) -> None:
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    # What PYTHONPATH has already stays: on a GPU machine the packages under test may be there and nowhere else.
    packages = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": packages}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "engine_support.compile_attention", target, *forms]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = {kernel["form"]: kernel for kernel in map(json.loads, done.stdout.splitlines())}
    assert set(kernels) == set(forms)
    for form, kernel in kernels.items():
        assert kernel["shared"] <= kernel["limit"]
        assert kernel["tensor_cores"] == ("combine" not in form)
        if not form.startswith(QUANTIZED):  # whose bytes are unpacked in registers, most of them loaded there
            assert kernel["asynchronous"] == (target == "hopper" and "combine" not in form)
