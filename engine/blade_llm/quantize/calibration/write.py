"""Writes the decoder layers of a calibrated checkpoint, each when it is quantised."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

from blade_llm.quantize.calibration.layer import QuantizedLayer
from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.states import StateFiles, States
from blade_llm.quantize.journal import Done, Journal
from blade_llm.quantize.layout import Layout, ShardFile, Unit
from blade_llm.quantize.source import TensorReader
from blade_llm.quantize.writer import WeightFile, copy_tensor, opened, write_tensor, write_tensors
from blade_llm.weights.split.writer import Progress


class LayerWriter:
    """Writes into the files of a layout; a layer is done when its bytes and the states behind it are on the disk."""

    def __init__(self, folder: Path, layout: Layout, reader: TensorReader, journal: Journal) -> None:
        self._folder = folder
        self._reader = reader
        self._journal = journal
        self._places = {unit.source.name: (file, unit) for file in layout.files for unit in file.units}

    def write(
        self,
        layerwise: Layerwise,
        files: StateFiles,
        done: Mapping[str, Done],
        smoothing: float | None,
        progress: Progress,
    ) -> tuple[dict[str, Done], States]:
        """Quantise and write all layers that are not ``done``, from the first of them on; returns what is done then,
        and the states behind the last layer.

        Raises :class:`~blade_llm.models.errors.ModelFilesError` for weights that cannot be quantised, ``OSError``.
        """
        names = [layerwise.names(index) for index in range(layerwise.num_layers)]
        first = next((index for index, some in enumerate(names) if not some <= done.keys()), len(names))
        states = files.load(first)
        if states is None:  # of files that somebody deleted: all layers are computed anew
            first = 0
            files.remove()
            states = layerwise.first_states(files)
        redone = set().union(*names[first:])
        all_done = {name: entry for name, entry in done.items() if name not in redone}
        with ExitStack() as stack:
            targets: dict[str, WeightFile] = {}
            for index in range(first, len(names)):
                begin = time.monotonic()
                after = files.next(states, index + 1)
                result = layerwise.quantize_layer(
                    index, states, after, smoothing, lambda name: progress(name, self._nbytes(name))
                )
                touched = [self._write(name, result, targets, stack) for name in sorted(names[index])]
                for target in set(touched):
                    target.sync()
                files.save(after, index + 1)
                entries = self._entries(sorted(names[index]), result, time.monotonic() - begin)
                self._journal.append(entries)
                files.remove(but=index + 1)
                states = after
                for entry in entries:
                    all_done[entry.tensor] = entry
                    if entry.error is None:
                        progress(entry.tensor, self._nbytes(entry.tensor))
        return all_done, states

    def _nbytes(self, name: str) -> int:
        return self._places[name][1].source.nbytes

    def _write(self, name: str, result: QuantizedLayer, targets: dict[str, WeightFile], stack: ExitStack) -> WeightFile:
        file, unit = self._places[name]
        if file.name not in targets:
            targets[file.name] = stack.enter_context(opened(self._folder, file))
        target = targets[file.name]
        self._write_unit(target, file, unit, result)
        return target

    def _write_unit(self, target: WeightFile, file: ShardFile, unit: Unit, result: QuantizedLayer) -> None:
        name = unit.source.name
        if unit.module is not None:
            write_tensors(target, file, unit, result.compressed[name].tensors)
        elif name in result.changed:
            write_tensor(target, file.begins[name], result.changed[name])
        else:
            copy_tensor(target, file, unit, self._reader)
            self._reader.release()

    def _entries(self, names: Collection[str], result: QuantizedLayer, seconds: float) -> list[Done]:
        """``seconds`` are shared out by size."""
        whole = sum(map(self._nbytes, names))
        entries = []
        for name in names:
            entry = Done(name, seconds * self._nbytes(name) / whole, changed=name in result.changed)
            if (found := result.compressed.get(name)) is not None:
                entry = Done(name, entry.seconds, found.error, found.output_error, found.notes)
            entries.append(entry)
        return entries
