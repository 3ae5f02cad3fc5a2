"""Whole tensors of a model folder, one at a time; also of one that was split for several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from blade_llm.spec.shard import Shard
from blade_llm.weights.checkpoint import open_checkpoint, open_rank
from blade_llm.weights.split.chunks import Bytes, TensorFiles, flat_chunks
from blade_llm.weights.split.join import whole_chunks
from blade_llm.weights.split.manifest import is_split, read_split

DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Of weights that can be quantised, by their safetensors names."""


class TensorReader:
    """Reads a folder's tensors through memory maps. Opening raises
    :class:`~blade_llm.models.errors.ModelFilesError` as :func:`~blade_llm.weights.checkpoint.open_checkpoint` does."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = open_checkpoint(folder)
        self._split = read_split(folder) if is_split(folder) else None
        self._files = TensorFiles()
        if self._split is not None:
            size, experts = self._split.tensor_parallel_size, self._split.enable_expert_parallel
            self._ranks = [open_rank(folder, Shard(rank, size, experts)).tensors for rank in range(size)]
        self._copies: dict[str, str] = {}

    def add_copy(self, name: str, of: str) -> None:
        """From now on there is a tensor ``name``, which is the tensor ``of`` once more, whatever is stored by it."""
        tensors = self.checkpoint.tensors
        self._copies[name] = of
        self.checkpoint = replace(self.checkpoint, tensors={**tensors, name: replace(tensors[of], name=name)})

    def chunks(self, name: str) -> Iterator[Bytes]:
        """The tensor's bytes, row-major."""
        name = self._copies.get(name, name)
        if self._split is not None:
            return whole_chunks(self._files, self._ranks, name, self._split.tensors[name])
        return flat_chunks(self._files.read(self.checkpoint.tensors[name]))

    def tensor(self, name: str) -> Tensor:
        """A copy of the tensor, whose type is one of :data:`DTYPES`."""
        info = self.checkpoint.tensors[name]
        data = np.empty(info.nbytes, np.uint8)
        begin = 0
        for chunk in self.chunks(name):
            data[begin : begin + len(chunk)] = chunk
            begin += len(chunk)
        return torch.from_numpy(data).view(DTYPES[info.dtype]).view(info.shape)

    def row_blocks(self, name: str, rows: int) -> Iterator[Tensor]:
        """Copies of so many ``rows`` of the tensor at a time, in order, so that it never is in memory as a whole."""
        info = self.checkpoint.tensors[name]
        left = info.nbytes
        most = rows * (info.nbytes // info.shape[0])
        data, filled = np.empty(min(most, left), np.uint8), 0
        for chunk in self.chunks(name):
            while len(chunk):
                part = chunk[: len(data) - filled]
                data[filled : filled + len(part)] = part
                chunk, filled = chunk[len(part) :], filled + len(part)
                if filled == len(data):
                    self.release()
                    yield torch.from_numpy(data).view(DTYPES[info.dtype]).view(-1, *info.shape[1:])
                    left -= filled
                    data, filled = np.empty(min(most, left), np.uint8), 0

    def release(self) -> None:
        """Give back the memory of what was read."""
        self._files.release()
