"""Where a test runs Triton kernels: compiled on the GPU where there is one, else in Triton's interpreter on the CPU.

Import this before anything that imports ``triton``, which looks at the environment when kernels are defined. A test
puts its tensors on :data:`DEVICE` and calls the kernel's ``triton`` module itself, since CPU tensors are not
dispatched to it.
"""

from __future__ import annotations

import importlib
import os
import sys

import pytest
import torch

COMPILED = torch.cuda.is_available()
DEVICE = torch.device("cuda" if COMPILED else "cpu")

if not COMPILED:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before tests/engine_support/triton_interpreter.py")
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)

pytest.importorskip("triton", reason="Triton is not installed")
importlib.import_module("engine_support.triton_bf16")
