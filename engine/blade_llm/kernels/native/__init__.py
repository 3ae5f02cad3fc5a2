"""The CPU operators written in C++ (``kernels/*/native.cpp``), as one shared library reached through ctypes.

The library is found beside the package when an image was built with one, else compiled once per user and cached. Where
neither works the torch implementations serve, correct but slower, and one log line says so.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path

import torch  # loads the OpenMP library that ours shares

from blade_llm.kernels.native import build

logger = logging.getLogger(__name__)

ISA_NAMES = ("baseline", "avx2", "avx512", "avx512_bf16", "amx")
"""Levels of :func:`isa`, each with all before it: AVX2 with FMA; AVX-512 F, BW, DQ, VL and VNNI; AVX512-BF16; AMX tiles
of bf16 and int8. ``BLADE_LLM_CPU_ISA`` lowers the level, to try a path that the CPU is too good for."""


@cache
def library() -> ctypes.CDLL | None:
    """The loaded library; None where it cannot be used, and the torch implementations do the work."""
    try:
        path = _prebuilt() or build.cached_library()
        loaded = ctypes.CDLL(str(path))
        loaded.blade_set_isa(_requested_isa(int(loaded.blade_detect_isa())))
    except (OSError, build.BuildError, AttributeError) as error:
        logger.warning("no native CPU operators, torch's take 2-5 times as long: %s", error)
        return None
    torch.get_num_threads()  # the first call makes torch set OpenMP's thread count, which ours follows
    return loaded


def isa() -> str:
    """The instruction set the library uses, one of :data:`ISA_NAMES`."""
    loaded = library()
    return ISA_NAMES[int(loaded.blade_isa())] if loaded is not None else ISA_NAMES[0]


def _prebuilt() -> Path | None:
    """A library made ahead, if it is of these sources; ``BLADE_LLM_NATIVE_LIB`` is used unchecked."""
    configured = os.environ.get("BLADE_LLM_NATIVE_LIB")
    if configured:
        return Path(configured)
    stamp = build.PREBUILT.with_suffix(".hash")
    try:
        if build.PREBUILT.exists() and stamp.read_text(encoding="ascii") == build.source_hash():
            return build.PREBUILT
    except OSError:
        pass
    return None


def _requested_isa(detected: int) -> int:
    requested = os.environ.get("BLADE_LLM_CPU_ISA")
    if not requested:
        return detected
    if requested not in ISA_NAMES:
        raise build.BuildError(f"BLADE_LLM_CPU_ISA={requested} is not one of {', '.join(ISA_NAMES)}")
    return min(detected, ISA_NAMES.index(requested))
