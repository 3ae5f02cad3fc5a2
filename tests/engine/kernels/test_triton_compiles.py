"""The attention kernels compile for GPUs that this machine does not have, within their shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("target", ["hopper", "mi300"])
def test_attention_compiles(target: str, tmp_path: Path) -> None:
    # What PYTHONPATH has already stays: on a GPU machine the packages under test may be there and nowhere else.
    packages = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": packages}
    environment.pop("TRITON_INTERPRET", None)
    forms = [f"{graph}{form}" for form in ("prefill", "decode", "combine") for graph in ("", "captured_")]
    forms += [f"{kind}{form}" for kind in ("options_", "wide_", "latent_") for form in ("prefill", "decode", "combine")]
    forms += ["tree_prefill", "short_prefill", "captured_short_prefill", "short_combine", "captured_short_combine"]
    forms += ["captured_tree_prefill", "captured_tree_short_prefill"]
    command = [sys.executable, "-m", "engine_support.compile_attention", target, *forms]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = {kernel["form"]: kernel for kernel in map(json.loads, done.stdout.splitlines())}
    assert set(kernels) == set(forms)
    for form, kernel in kernels.items():
        assert kernel["shared"] <= kernel["limit"]
        assert kernel["tensor_cores"] == ("combine" not in form)
        assert kernel["asynchronous"] == (target == "hopper" and "combine" not in form)
