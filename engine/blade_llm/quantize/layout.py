"""Where each tensor of the new checkpoint lies: all sizes are known before anything is computed, so that tensors can be
written in any order, and a run that was stopped knows what it has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from blade_llm.models.errors import ModelFilesError
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.plan import Plan
from blade_llm.weights.split.writer import header_of, in_file_order, index_of, shard_names, shards_of
from blade_llm.weights.tensor_info import DTYPE_BITS, TensorInfo


@dataclass(frozen=True, slots=True)
class StoredAs:
    """A tensor of the new checkpoint."""

    name: str
    dtype: str
    """The safetensors name."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class Unit:
    """A tensor of the source and what it becomes; all of that lies in one file."""

    source: TensorInfo
    module: str | None
    """The linear layer whose weight it is and that is quantised; None: copied as it is."""
    stored: tuple[StoredAs, ...]
    again: bool = False
    """The source has it under another name, where it is a unit, too."""
    table: bool = False
    """The embedding table, quantised in a form of its own."""
    head: bool = False
    """The output matrix, quantised."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.stored)

    @property
    def instead(self) -> str:
        """What of the flags leaves it as it is."""
        if self.table:
            return "--quant_embedding=false"
        return "--quant_lm_head=false" if self.head else f"--ignore {self.module}"


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A file of the new checkpoint."""

    name: str
    header: bytes
    nbytes: int
    """Of the file, with its header."""
    units: tuple[Unit, ...]
    begins: Mapping[str, int]
    """Offset of each tensor in the file."""


@dataclass(frozen=True, slots=True)
class Layout:
    """All files of the new checkpoint."""

    files: tuple[ShardFile, ...]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for file in self.files for unit in file.units)

    @property
    def index(self) -> bytes | None:
        """The index of the files; None of a single one."""
        if len(self.files) == 1:
            return None
        where = {tensor: file.name for file in self.files for tensor in file.begins}
        return index_of(where, sum(unit.nbytes for unit in self.units))


def make_layout(
    tensors: Mapping[str, TensorInfo], plan: Plan, options: QuantizeOptions, max_shard_bytes: int
) -> Layout:
    """Files of at most ``max_shard_bytes``; what one tensor becomes is never divided.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` where the source has a tensor by a name that is needed.
    """
    units = [_unit(info, plan, options) for info in tensors.values()]
    names = [tensor.name for unit in units for tensor in unit.stored]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ModelFilesError(f"the checkpoint has a tensor {twice!r}, which is what a quantised one has; take another")
    shards = list(shards_of(units, max_shard_bytes))
    files = (_file(name, shard) for name, shard in zip(shard_names(len(shards)), shards, strict=True))
    return Layout(tuple(files))


def _unit(info: TensorInfo, plan: Plan, options: QuantizeOptions) -> Unit:
    module, again = plan.modules.get(info.name), info.name == plan.untied
    if module is None:
        return Unit(info, None, (StoredAs(info.name, info.dtype, info.shape),), again)
    outputs, inputs = info.shape
    table = module == plan.table
    form = options.for_table.form if table else options.form
    stored = [
        # Scales may have several types: they have the weight's own.
        StoredAs(each.name, info.dtype if info.dtype in each.types else each.types[0], each.shape)
        for each in form.stored(module, outputs, inputs)
    ]
    return Unit(info, module, tuple(stored), again, table, module == plan.head)


def _file(name: str, units: Sequence[Unit]) -> ShardFile:
    ordered = in_file_order(_stored(units))
    header = header_of(ordered)
    begins, begin = {}, len(header)
    for tensor in ordered:
        begins[tensor.name] = begin
        begin += tensor.nbytes
    return ShardFile(name, header, begin, tuple(units), begins)


def _stored(units: Iterable[Unit]) -> list[StoredAs]:
    return [tensor for unit in units for tensor in unit.stored]
