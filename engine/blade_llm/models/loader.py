"""Weights by their Hugging Face names, from safetensors or random, on the device and in the type they compute in.

Files are memory-mapped: on CPU a tensor whose type already fits is not copied, and replicas share its pages.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from blade_llm.models.checkpoint import check_tensors, open_checkpoint
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.families import expected_tensors


class Weights(Protocol):
    """Where a model takes its tensors from."""

    def tensor(self, name: str) -> Tensor:
        """One tensor."""

    def stacked(self, names: list[str]) -> Tensor:
        """Several, concatenated along the first dimension."""


class SafetensorsWeights:
    """The weights of a model folder."""

    def __init__(self, model_dir: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        """Raises :class:`ModelFilesError` when files or tensors are missing, truncated or of the wrong shape."""
        self._checkpoint = open_checkpoint(model_dir)
        problems = check_tensors(self._checkpoint, expected_tensors(config))
        if problems:
            raise ModelFilesError(f"{model_dir}: {'; '.join(problems)}")
        self._device = device
        self._dtype = dtype
        self._open: dict[Path, Any] = {}

    def tensor(self, name: str) -> Tensor:
        file = self._checkpoint.tensors[name].file
        try:
            if file not in self._open:
                self._open[file] = safe_open(file, framework="pt", device=str(self._device))
            tensor: Tensor = self._open[file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelFilesError(f"{file}: cannot read {name!r}: {error}; download the file again") from None
        return tensor.to(self._dtype)

    def stacked(self, names: list[str]) -> Tensor:
        return torch.cat([self.tensor(name) for name in names])


class DummyWeights:
    """Random weights of the right shapes, the same for the same names; for measurements (``--load_format dummy``)."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._shapes = expected_tensors(config)
        self._device = device
        self._dtype = dtype

    def tensor(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return tensor.normal_(0.0, 0.02, generator=generator)

    def stacked(self, names: list[str]) -> Tensor:
        return torch.cat([self.tensor(name) for name in names])
