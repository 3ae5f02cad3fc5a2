"""Reads a model's tensors by their place in it, out of a source that knows them by their names in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.quantized.reading import read_quantized
from blade_llm.models.weight_source import WeightSource
from blade_llm.spec.slices import contiguous_runs
from blade_llm.spec.tensors import LinearMap, TensorMap, TensorPart


class Parameters:
    """Applies a tensor map."""

    def __init__(self, source: WeightSource, tensors: TensorMap) -> None:
        """``tensors``: as the names of ``source`` are (:meth:`~blade_llm.spec.tensors.TensorMap.found_in`)."""
        self.source = source
        self.map = tensors

    def tensor(self, place: str) -> Tensor:
        """The tensor at ``place``, as :func:`~blade_llm.models.names.tensor_map` names them."""
        return self.read((self.map.tensors[place],))

    def linear(self, place: str) -> LinearMap:
        """Which of the checkpoint's layers make up the linear layer at ``place``."""
        return self.map.linears[place]

    def read(self, parts: Sequence[TensorPart]) -> Tensor:
        """Parts of the checkpoint, one under the other."""
        if all(part.plain for part in parts):
            return self.source.stacked([part.name for part in parts])

        def make() -> Tensor:
            pieces = [self._piece(part) for part in parts]
            return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

        return self.source.made([part.key for part in parts], make)

    def made(self, place: str, form: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What ``make`` makes of the tensor at ``place``, under the name ``form``, which says how."""
        part = self.map.tensors[place]
        return self.source.made([f"{part.key} {form}"], lambda: make(self._piece(part)))

    def quantized(self, part: TensorPart) -> QuantizedWeight | Float8Weight:
        """The part of a weight that the checkpoint has quantised. Raises
        :class:`~blade_llm.models.errors.ModelFilesError` for tensors that contradict each other."""
        return read_quantized(self.source, part)

    def _piece(self, part: TensorPart) -> Tensor:
        if part.form is not None:
            weight = self.quantized(part).dequantize()
            return weight.to(torch.float32 if part.float32 else self.source.dtype)
        runs: tuple[range | None, ...] = (None,)
        order: tuple[int, ...] | None = None
        if part.rows is not None:
            runs, order = contiguous_runs(part.rows)
        blocks = [self._block(part, run) for run in runs]
        tensor = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        if order is not None:
            tensor = tensor.index_select(0, torch.tensor(order, device=tensor.device))
        if part.unit_rows:
            tensor = F.normalize(tensor.float()).to(tensor.dtype)
        return tensor.contiguous()

    def _block(self, part: TensorPart, rows: range | None) -> Tensor:
        tensor = self.source.tensor(part.name, part.block(rows), torch.float32 if part.float32 else None)
        return tensor.t() if part.transposed else tensor
