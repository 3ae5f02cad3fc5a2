"""In what tiles products with packed weights are computed, and how their inputs are split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from blade_llm.kernels.shared_memory import shared_memory

MOST_ROWS = 64
"""Up to so many rows weights are unpacked where they are multiplied; for more a block of them becomes floats for
cuBLAS. Not measured on a GPU yet."""
_PROGRAMS = 2
"""For each multiprocessor, that splits aim at."""
_LEAST_UNITS = 2
"""Of a split."""
_MOST_SPLITS = 16
_LEAST_BLOCK, _MOST_BLOCK = 1 << 22, 1 << 24
"""Weights that are floats at a time."""
_SPARE = 1024
"""Bytes of shared memory that are for other things than loads."""


@dataclass(frozen=True, slots=True)
class Form:
    """The tile of a program."""

    rows: int
    outputs: int
    warps: int
    stages: int
    """Loads in flight, at most."""


_FORMS = (Form(16, 64, 4, 5), Form(32, 128, 8, 4), Form(MOST_ROWS, 128, 8, 3))
"""By rows. A decode waits for weights, and the more rows there are, the more of its loads are rows."""


def form_of(rows: int, *, deterministic: bool) -> Form:
    """The form for so many rows, at most :data:`MOST_ROWS`; a deterministic layer has one."""
    return _FORMS[-1] if deterministic else next(form for form in _FORMS if rows <= form.rows)


def split_units(units: int, outputs: int, tile: int, device: torch.device) -> tuple[int, int]:
    """Splits of the inputs, and units of one. It says nothing of rows, on which a sum's order may not depend."""
    tiles = -(-outputs // tile)
    wanted = min(_PROGRAMS * processors(device) // tiles, units // _LEAST_UNITS, _MOST_SPLITS)
    each = -(-units // max(1, wanted))
    return -(-units // each), each


def stages_of(form: Form, stage: int, device: torch.device) -> int:
    """Loads in flight that fit shared memory where one of them takes ``stage`` bytes."""
    return max(1, min(form.stages, (shared_memory(device) - _SPARE) // stage))


def block_rows(tokens: int, outputs: int, inputs: int) -> int:
    """Outputs that become floats at a time: about as many numbers as the tokens have, so that the memory of a step is
    what is planned for it (:func:`blade_llm.spec.quantization.weights.dequantized_bytes`)."""
    elements = min(max(tokens * inputs, _LEAST_BLOCK), _MOST_BLOCK)
    return min(outputs, max(1, elements // inputs))


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 16
