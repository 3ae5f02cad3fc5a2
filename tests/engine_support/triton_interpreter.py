"""Where a test runs Triton kernels: compiled on the GPU where there is one, else in Triton's interpreter on the CPU.

Import this before anything that imports ``triton``, which looks at the environment when kernels are defined. A test
puts its tensors on :data:`DEVICE` and calls the kernel's ``triton`` module itself, since CPU tensors are not
dispatched to it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

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
importlib.import_module("engine_support.triton_products")


def use_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """:func:`use_backend` with Triton."""
    use_backend(monkeypatch, "triton")


def use_backend(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Let every operator that has a Triton implementation choose ``backend``, on any tensor, until the test ends."""
    importlib.import_module("blade_llm.kernels.warm")  # which imports them all

    for name, module in list(sys.modules.items()):
        if name == "blade_llm.kernels.warm" or (name.startswith("blade_llm.kernels.") and _has_triton(module)):
            monkeypatch.setattr(module, "backend_of", lambda tensor: backend)


def _has_triton(operator: ModuleType) -> bool:
    folder = hasattr(operator, "backend_of") and hasattr(operator, "__path__")
    return folder and find_spec(f"{operator.__name__}.triton") is not None


def record_launches(monkeypatch: pytest.MonkeyPatch) -> set[tuple[object, ...]]:
    """A set that receives, with every launch in the interpreter, the kernel's name and what Triton would compile a
    variant for: constants, types, and of pointers and whole numbers whether 16 divides them."""
    from triton.runtime.interpreter import InterpretedFunction

    variants: set[tuple[object, ...]] = set()
    run = InterpretedFunction.run

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        exempt = self.kwargs.get("do_not_specialize") or []
        aligned = self.kwargs.get("do_not_specialize_on_alignment") or []
        key: list[object] = [self.fn.__name__, kwargs.get("num_warps"), kwargs.get("num_stages")]
        parameters = inspect.signature(self.fn).parameters
        for name, value in {**dict(zip(parameters, args, strict=False)), **kwargs}.items():
            if name not in parameters:
                continue
            if "constexpr" in str(parameters[name].annotation):
                key.append((name, value))
            elif isinstance(value, torch.Tensor):
                key.append((name, value.dtype, name not in aligned and value.data_ptr() % 16 == 0))
            elif isinstance(value, int) and name not in exempt:
                key.append((name, value == 1, name not in aligned and value % 16 == 0))
        variants.add(tuple(key))
        return run(self, *args, **kwargs)

    monkeypatch.setattr(InterpretedFunction, "run", recorded)
    return variants
