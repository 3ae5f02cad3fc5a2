"""A checkpoint's tensors in one type for one layer after the other, some of them replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.quantize.source import TensorReader
from blade_llm.spec.slices import Slice


class CheckpointTensors:
    """A :class:`~blade_llm.models.weight_source.WeightSource` that keeps nothing."""

    def __init__(self, reader: TensorReader, dtype: torch.dtype = torch.float32) -> None:
        """``dtype``: that tensors are read in."""
        self._reader = reader
        self._dtype = dtype
        self.replaced: dict[str, Tensor | QuantizedWeight | Float8Weight] = {}
        """Whole tensors that take the place of the checkpoint's, by their names."""
        self._last: tuple[str, Tensor] | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def tensor(self, name: str, block: Slice | None = None, dtype: torch.dtype | None = None) -> Tensor:
        return self.stored(name, block).to(dtype or self.dtype).contiguous()

    def stored(self, name: str, block: Slice | None = None) -> Tensor:
        whole = self._whole(name)
        if block is None:
            return whole
        self._last = (name, whole)  # several blocks of a tensor are read one after the other
        whole = whole if block.index is None else whole[block.index]
        whole = whole if block.rows is None else whole[block.rows.start : block.rows.stop]
        return whole if block.columns is None else whole[:, block.columns.start : block.columns.stop]

    def row_blocks(self, name: str, rows: int) -> Iterator[Tensor]:
        """A whole tensor in the type that it is stored in, so many ``rows`` at a time."""
        if name in self.replaced:
            return iter(torch.split(self._whole(name), rows))
        return self._reader.row_blocks(name, rows)

    def _whole(self, name: str) -> Tensor:
        found = self.replaced.get(name)
        if isinstance(found, Tensor):
            return found
        if self._last is not None and self._last[0] == name:
            return self._last[1]
        self._last = None
        if found is not None:
            return found.dequantize()
        tensor = self._reader.tensor(name)
        self._reader.release()
        return tensor

    def stacked(self, names: list[str]) -> Tensor:
        return torch.cat([self.tensor(name) for name in names]) if len(names) > 1 else self.tensor(names[0])

    def made(self, keys: list[str], make: Callable[[], Tensor]) -> Tensor:
        return make()

    def packed(self, keys: list[str], make: Callable[[], PackedLinear]) -> PackedLinear:
        return make()

    def forget(self) -> None:
        """Let go of what is held, replaced tensors included."""
        self.replaced.clear()
        self._last = None
