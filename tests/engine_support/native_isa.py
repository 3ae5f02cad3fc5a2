"""Running the native operators at each instruction set that this CPU has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from blade_llm.kernels import native

LIBRARY = native.library()
needs_native = pytest.mark.skipif(LIBRARY is None, reason="no C++ compiler, no native operators")

ISAS = native.ISA_NAMES[: 1 + (LIBRARY.blade_detect_isa() if LIBRARY is not None else 0)]


@contextmanager
def limited_to(isa: str) -> Iterator[None]:
    """The native operators use only ``isa`` and what comes before it."""
    assert LIBRARY is not None
    before = LIBRARY.blade_isa()
    LIBRARY.blade_set_isa(native.ISA_NAMES.index(isa))
    try:
        yield
    finally:
        LIBRARY.blade_set_isa(before)
