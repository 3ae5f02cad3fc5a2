"""Fixtures that tests of several kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from blade_llm.kernels import native
from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.linear import native as native_linear

PATHS = ["amx", "avx512_bf16", "avx2", "torch"]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An instruction set for the native linear layers, or ``torch`` for doing without."""
    name: str = request.param
    library = native.library()
    if name == "torch":
        monkeypatch.setattr(native_linear, "_functions", lambda: None)
        yield name
        return
    level = native.ISA_NAMES.index(name)
    if library is None or backend_of(torch.empty(0)) != "native" or library.blade_detect_isa() < level:
        pytest.skip(f"no {name} here")
    before = library.blade_isa()
    library.blade_set_isa(level)
    native_linear._functions.cache_clear()
    yield name
    library.blade_set_isa(before)
    native_linear._functions.cache_clear()
