"""A source of weights that also packs them: with a file of packed weights, or writing one.

Both know from the tensors they hand out what a linear layer is packed from. The writing one notes what became of each:
packed and given up, or kept by the model. The reading one then hands out tensors without data for the former (torch's
"meta" device); whoever needs data that way gets an error, on which the model is loaded without the file.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from blade_llm.kernels.linear import pack
from blade_llm.kernels.linear.native import FORMS, PANEL, NativeLinear, Parts, pack_stacked
from blade_llm.kernels.linear.packed import PackedLinear, Quantization
from blade_llm.models.weight_source import WeightSource
from blade_llm.spec.slices import Slice
from blade_llm.weights.packed_cache.file import Directory, PackedFile, StoredLinear, StoredTensor
from blade_llm.weights.packed_cache.file_source import FileSource
from blade_llm.weights.packed_cache.folder import Writing

logger = logging.getLogger(__name__)

Names = tuple[str, ...]
_QUANTIZED: Final = ("quantized",)
"""What the names of a layer begin with whose weight the checkpoint has quantised; its biases are among them."""


class StalePackedFileError(Exception):
    """The file does not hold what the model needs."""


class _Handed:
    """Which names the tensors that were handed out stand for."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[weakref.ref[Tensor], Names]] = {}

    def add(self, names: Names, tensor: Tensor) -> Tensor:
        self._tensors[id(tensor)] = weakref.ref(tensor), names
        return tensor

    def names(self, tensor: Tensor | None) -> Names | None:
        """None for a tensor that was not handed out; empty for no tensor."""
        if tensor is None:
            return ()
        reference, names = self._tensors.get(id(tensor), (None, None))
        return names if reference is not None and reference() is tensor else None

    def require_data(self) -> None:
        """Raises :class:`StalePackedFileError` when somebody still has a tensor without data."""
        kept = [names for names, tensor in self.alive() if tensor.device.type == "meta"]
        if kept:
            raise StalePackedFileError(f"the model keeps {kept[0]}, which has no data")

    def alive(self) -> list[tuple[Names, Tensor]]:
        """Tensors that somebody still has, in the order of their names."""
        found = [(names, reference()) for reference, names in self._tensors.values()]
        return sorted(((names, tensor) for names, tensor in found if tensor is not None), key=lambda each: each[0])


class WritingSource:
    """Hands out the tensors of ``source``, and writes what is packed of them."""

    def __init__(self, source: FileSource, writing: Writing, dtype: torch.dtype) -> None:
        self._source, self._writing, self._dtype = source, writing, dtype
        self._handed = _Handed()
        self._linears: list[StoredLinear] = []
        self._placed: list[NativeLinear] = []
        self._failed = False

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def tensor(self, name: str, block: Slice | None = None, dtype: torch.dtype | None = None) -> Tensor:
        tensor = self._source.tensor(name, block, dtype)
        return self._handed.add((name,), tensor) if block is None and dtype is None else tensor

    def stored(self, name: str, block: Slice | None = None) -> Tensor:
        return self._source.stored(name, block)

    def made(self, keys: list[str], make: Callable[[], Tensor]) -> Tensor:
        return self._handed.add(tuple(keys), make())

    def stacked(self, names: list[str]) -> Tensor:
        """Matrices of whole panels have no data either: they are packed one by one, straight from the file."""
        shapes = [self._source.stacked_shape([name]) for name in names]
        if len(names) > 1 and all(len(shape) == 2 and shape[0] % PANEL == 0 for shape in shapes):
            shape = self._source.stacked_shape(names)
            return self._handed.add(tuple(names), torch.empty(shape, dtype=self._dtype, device="meta"))
        return self._handed.add(tuple(names), self._source.stacked(names))

    def pack(
        self, weight: Tensor, bias: Tensor | None, quant: Quantization, *, deterministic: bool
    ) -> PackedLinear | None:
        """As :func:`blade_llm.kernels.linear.pack`; what the native kernels packed is then read from the file."""
        names, bias_names = self._handed.names(weight), self._handed.names(bias)
        linear: PackedLinear | None = None
        if weight.device.type == "meta":
            if not names:
                raise StalePackedFileError("a weight was made of several before it was packed")
            linear = pack_stacked(self._source.parts(names), bias, quant, deterministic)
            if linear is None:
                weight = self._source.stacked(list(names))
        if linear is None:
            linear = pack(weight, bias, quant, deterministic=deterministic)
        if isinstance(linear, NativeLinear) and names and bias_names is not None and not self._failed:
            self._write(linear, names, bias_names)
        return linear

    def packed(self, keys: list[str], make: Callable[[], PackedLinear]) -> PackedLinear:
        linear = make()
        if isinstance(linear, NativeLinear) and not self._failed:
            self._write(linear, (*_QUANTIZED, *keys), ())
        return linear

    def _write(self, linear: NativeLinear, names: Names, bias_names: Names) -> None:
        try:
            spans, parts = zip(*(self._writing.writer.add(part) for part in linear.parts), strict=True)
        except OSError as error:
            self._give_up(str(error))
            return
        linear.place(Parts(*parts))
        self._placed.append(linear)
        self._linears.append(
            StoredLinear(names, bias_names, linear.form, linear.deterministic, linear.outputs, linear.inputs, *spans)
        )

    def finish(self) -> threading.Thread | None:
        """The model is complete: keep what it keeps, and complete the file in a thread (it waits for the disk).

        Raises :class:`StalePackedFileError` when it keeps a tensor without data.
        """
        self._handed.require_data()
        if self._failed:
            return None
        if not self._linears:
            self._give_up("the native kernels packed nothing")
            return None
        tensors, elsewhere = [], []
        try:
            for names, tensor in self._handed.alive():
                if self._source.is_mapped(names):
                    elsewhere.append(names)
                else:
                    span, _ = self._writing.writer.add(tensor)
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    tensors.append(StoredTensor(names, dtype, tuple(tensor.shape), span))
        except OSError as error:
            self._give_up(str(error))
            return None
        self._placed.clear()
        directory = Directory(tuple(self._linears), tuple(tensors), tuple(elsewhere))
        thread = threading.Thread(target=self._writing.publish, args=(directory,), name="packed-weights", daemon=True)
        thread.start()
        return thread

    def abandon(self, reason: str) -> None:
        """The model was not completed."""
        if not self._failed:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        """Take what was written into memory: the space of a deleted file is free only when nothing maps it."""
        self._failed = True
        while self._placed:
            linear = self._placed.pop()
            linear.place(Parts(*(part.clone() for part in linear.parts)))
        self._writing.give_up(reason)


class ReadingSource:
    """Hands out what ``file`` has, and the tensors of ``source`` for the rest."""

    def __init__(self, source: WeightSource, file: PackedFile, dtype: torch.dtype) -> None:
        self._source, self._file, self._dtype = source, file, dtype
        self._handed = _Handed()
        linears, tensors = file.directory.linears, file.directory.tensors
        self._linears = {(each.weight, each.bias, each.form, each.deterministic): each for each in linears}
        self._quantized = {each.weight: each for each in linears if each.weight[:1] == _QUANTIZED}
        self._tensors = {each.names: each for each in tensors}
        self._shapes: dict[Names, tuple[int, ...]] = {}
        for each in linears:
            self._shapes[each.weight] = (each.outputs, each.inputs)
            self._shapes[each.bias] = (each.outputs,)
        for names in file.directory.elsewhere:
            self._shapes.pop(names, None)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def tensor(self, name: str, block: Slice | None = None, dtype: torch.dtype | None = None) -> Tensor:
        if block is not None or dtype is not None:  # a piece of what `made` did not find
            return self._source.tensor(name, block, dtype)
        return self._hand((name,), lambda: self._source.tensor(name))

    def stored(self, name: str, block: Slice | None = None) -> Tensor:
        return self._source.stored(name, block)

    def made(self, keys: list[str], make: Callable[[], Tensor]) -> Tensor:
        return self._hand(tuple(keys), make)

    def stacked(self, names: list[str]) -> Tensor:
        return self._hand(tuple(names), lambda: self._source.stacked(names))

    def _hand(self, names: Names, read: Callable[[], Tensor]) -> Tensor:
        if names in self._tensors:
            tensor = self._file.tensor(self._tensors[names])
        elif names in self._shapes:
            tensor = torch.empty(self._shapes[names], dtype=self._dtype, device="meta")
        else:
            tensor = read()
        return self._handed.add(names, tensor)

    def pack(
        self, weight: Tensor, bias: Tensor | None, quant: Quantization, *, deterministic: bool
    ) -> PackedLinear | None:
        """The layer as it is in the file."""
        names, bias_names = self._handed.names(weight), self._handed.names(bias)
        stored = None
        if names is not None and bias_names is not None:
            stored = self._linears.get((names, bias_names, FORMS[quant], deterministic))
        if stored is None:
            if _without_data([weight, bias]):
                raise StalePackedFileError(f"no packed weight of {names} and {bias_names}")
            return pack(weight, bias, quant, deterministic=deterministic)
        return self._read(stored)

    def packed(self, keys: list[str], make: Callable[[], PackedLinear]) -> PackedLinear:
        stored = self._quantized.get((*_QUANTIZED, *keys))
        return make() if stored is None else self._read(stored)

    def _read(self, stored: StoredLinear) -> NativeLinear:
        piece = self._file.piece
        parts = Parts(
            piece(stored.records),
            piece(stored.scales).view(torch.float32),
            piece(stored.bias_values).view(torch.float32),
            piece(stored.order).view(torch.int32),
        )
        return NativeLinear(stored.outputs, stored.inputs, stored.form, stored.deterministic, parts)

    def finish(self) -> None:
        """The model is complete. Raises :class:`StalePackedFileError` when it keeps a tensor without data."""
        self._handed.require_data()


def _without_data(tensors: Sequence[Tensor | None]) -> bool:
    return any(tensor is not None and tensor.device.type == "meta" for tensor in tensors)
