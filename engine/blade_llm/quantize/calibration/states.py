"""The hidden states between two decoder layers, in memory or in a mapped file, and on the disk after each layer, so
that a run that was killed goes on at the layer where it was."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from blade_llm.quantize.journal import JOURNAL_NAME
from blade_llm.weights.output_folder import sync

_PREFIX: Final = f"{JOURNAL_NAME}.states."


@dataclass(frozen=True, slots=True)
class States:
    """Of all samples behind quantised layers, and of those that judge the result behind original ones, too."""

    every: Tensor
    """[tokens of all samples + tokens of those that judge, hidden] fp32: both, one after the other."""
    tokens: int
    """Of all samples."""

    @property
    def quantized(self) -> Tensor:
        """[tokens, hidden]."""
        return self.every[: self.tokens]

    @property
    def original(self) -> Tensor:
        """[tokens of the samples that judge, hidden]."""
        return self.every[self.tokens :]


class StateFiles:
    """Files of states in a folder, one at a time but while the next is written. Methods raise ``OSError``."""

    def __init__(self, folder: Path, tokens: int, judging: int, hidden: int, *, mapped: bool) -> None:
        """``judging``: tokens of the samples that judge. ``mapped``: states stay in their files instead of memory."""
        self._folder = folder
        self._tokens = tokens
        self._shape = (tokens + judging, hidden)
        self._mapped = mapped

    @property
    def nbytes(self) -> int:
        """Of one file."""
        return self._shape[0] * self._shape[1] * 4

    def first(self, quantized: Tensor, original: Tensor) -> States:
        """States before the first layer, as :class:`States` has them."""
        every = self._new(0)
        every[: self._tokens] = quantized
        every[self._tokens :] = original
        return States(every, self._tokens)

    def load(self, index: int) -> States | None:
        """States before layer ``index``; None where they are not there."""
        path = self._path(index)
        if not path.is_file() or path.stat().st_size != self.nbytes:
            return None
        found = _mapped(path, self._shape)
        return States(found if self._mapped else found.clone(), self._tokens)

    def next(self, states: States, index: int) -> States:
        """Where the states before layer ``index`` go: ``states`` itself, those before, unless they stay in files."""
        return States(self._new(index), self._tokens) if self._mapped else states

    def save(self, states: States, index: int) -> None:
        """Return when ``states`` are the ones before layer ``index`` for sure."""
        staging = self._staging(index)
        if not self._mapped:
            with staging.open("wb") as stream:
                stream.write(states.every.numpy().data)
        sync(staging)
        staging.replace(self._path(index))

    def remove(self, but: int | None = None) -> None:
        """Delete all files, but that of the states before layer ``but``."""
        for path in self._folder.glob(f"{_PREFIX}*"):
            if but is None or path != self._path(but):
                path.unlink()

    def _new(self, index: int) -> Tensor:
        if not self._mapped:
            return torch.empty(self._shape)
        staging = self._staging(index)
        with staging.open("w+b") as stream:  # all of its space now: a full disk is an error here, and a signal later
            os.posix_fallocate(stream.fileno(), 0, self.nbytes)
        return _mapped(staging, self._shape)

    def _path(self, index: int) -> Path:
        return self._folder / f"{_PREFIX}{index}"

    def _staging(self, index: int) -> Path:
        return self._folder / f"{_PREFIX}{index}.staging"


def _mapped(path: Path, shape: tuple[int, int]) -> Tensor:
    size = shape[0] * shape[1]
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.float32).view(shape)
