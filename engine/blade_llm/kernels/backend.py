"""Which implementation of an operator computes a tensor: Triton on GPUs, native code on CPUs, else plain torch.

``BLADE_LLM_KERNELS=torch`` keeps everything on the torch implementations, which define what is correct: to distinguish
a wrong kernel from a wrong model.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Literal

from torch import Tensor

from blade_llm.kernels import native

Backend = Literal["torch", "native", "triton"]


def backend_of(tensor: Tensor) -> Backend:
    """The implementation for operators on ``tensor``; an operator may still fall back to torch for a rare shape."""
    if torch_only():
        return "torch"
    if tensor.device.type == "cuda":
        return "triton" if _has_triton() else "torch"
    return "native" if native.library() is not None else "torch"


@cache
def torch_only() -> bool:
    """Whether the environment keeps all operators on torch."""
    return os.environ.get("BLADE_LLM_KERNELS") == "torch"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
