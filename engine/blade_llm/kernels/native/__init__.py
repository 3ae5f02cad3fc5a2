"""The CPU operators written in C++, as one shared library."""

from __future__ import annotations

import ctypes


def library() -> ctypes.CDLL | None:
    """The loaded library; None where it cannot be used, and the torch implementations do the work."""
    return None
