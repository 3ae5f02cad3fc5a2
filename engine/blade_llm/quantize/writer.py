"""Writes the weight files of a quantised checkpoint: one tensor of the source after the other is read, quantised and
written to its place, so that memory never holds more than one."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from blade_llm.models.errors import ModelFilesError
from blade_llm.quantize.compress import compress
from blade_llm.quantize.journal import Done, Journal
from blade_llm.quantize.layout import Layout, ShardFile, Unit
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.source import TensorReader
from blade_llm.weights.split.chunks import Bytes, flat_chunks
from blade_llm.weights.split.writer import Progress

SYNC_SECONDS: Final = 5.0
"""At most so much work is lost when the process is killed, and what one tensor takes."""


def write_weights(
    folder: Path,
    layout: Layout,
    reader: TensorReader,
    options: QuantizeOptions,
    journal: Journal,
    done: Mapping[str, Done],
    progress: Progress,
    but: Collection[str] = (),
) -> dict[str, Done]:
    """Write the files of ``layout`` into ``folder``, all but the tensors that are ``done``; returns those and the new.

    ``but``: tensors that are written otherwise. ``progress`` is called with the name of a tensor of the source and its
    bytes there. Raises :class:`~blade_llm.models.errors.ModelFilesError` for weights that cannot be quantised,
    ``OSError``.
    """
    all_done = dict(done)
    for file in layout.files:
        missing = [unit for unit in file.units if unit.source.name not in done and unit.source.name not in but]
        if not missing and (folder / file.name).is_file():
            continue
        with opened(folder, file) as target:
            for entry in _write_units(target, file, missing, reader, options, journal):
                all_done[entry.tensor] = entry
                progress(entry.tensor, reader.checkpoint.tensors[entry.tensor].nbytes)
    return all_done


class WeightFile:
    """A file whose bytes are written to their places."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Bytes | bytes, offset: int) -> int:
        """Returns the offset behind the data."""
        view = memoryview(data.data if isinstance(data, np.ndarray) else data)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written
        return offset

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        os.fdatasync(self._descriptor)


@contextmanager
def opened(folder: Path, file: ShardFile) -> Iterator[WeightFile]:
    """The file in ``folder``, of its whole size; what is in it already stays. At the end all of it is on the disk."""
    descriptor = os.open(folder / file.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, file.nbytes)
        target = WeightFile(descriptor)
        target.write(file.header, 0)
        yield target
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_units(
    target: WeightFile,
    file: ShardFile,
    units: list[Unit],
    reader: TensorReader,
    options: QuantizeOptions,
    journal: Journal,
) -> Iterator[Done]:
    pending: list[Done] = []
    synced = time.monotonic()
    for unit in units:
        begin = time.monotonic()
        error = _write_unit(target, file, unit, reader, options)
        reader.release()
        entry = Done(unit.source.name, time.monotonic() - begin, error)
        pending.append(entry)
        if time.monotonic() - synced >= SYNC_SECONDS or unit is units[-1]:
            target.sync()
            journal.append(pending)
            pending, synced = [], time.monotonic()
        yield entry


def _write_unit(
    target: WeightFile, file: ShardFile, unit: Unit, reader: TensorReader, options: QuantizeOptions
) -> float | None:
    name = unit.source.name
    if unit.module is None:
        copy_tensor(target, file, unit, reader)
        return None
    try:
        compressed = compress(reader.tensor(name), options.for_table if unit.table else options)
    except ValueError as error:
        raise ModelFilesError(f"{name} cannot be quantised: {error}; {unit.instead} leaves it as it is") from None
    write_tensors(target, file, unit, compressed.tensors)
    return compressed.error


def write_tensors(target: WeightFile, file: ShardFile, unit: Unit, tensors: Mapping[str, Tensor]) -> None:
    """Write what stands for a weight that is quantised: ``tensors`` by their names below the module."""
    for stored in unit.stored:
        write_tensor(target, file.begins[stored.name], tensors[stored.name.removeprefix(f"{unit.module}.")])


def write_tensor(target: WeightFile, offset: int, tensor: Tensor) -> None:
    """Write ``tensor`` from ``offset`` of the file on."""
    for chunk in flat_chunks(_bytes(tensor)):
        offset = target.write(chunk, offset)


def copy_tensor(target: WeightFile, file: ShardFile, unit: Unit, reader: TensorReader) -> None:
    """Write a tensor of the source as it is."""
    name = unit.source.name
    offset = file.begins[name]
    for chunk in reader.chunks(name):
        offset = target.write(chunk, offset)


def _bytes(tensor: Tensor) -> Bytes:
    data: Bytes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return data
