"""The tensors that a folder's weight files hold."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


def tensors_of(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return dict(chain.from_iterable(load_file(file).items() for file in files))


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """NaN is like NaN, and -0 is not like 0."""
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
