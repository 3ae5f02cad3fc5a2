"""Which part of each tensor goes to which rank: what its tensor map reads, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from blade_llm.models.config import ModelConfig
from blade_llm.models.sharding import shard_model
from blade_llm.models.vision.names import vision_tensors
from blade_llm.spec.slices import Slice
from blade_llm.spec.tensors import TensorMap
from blade_llm.weights.split.part import Part, Run, merged
from blade_llm.weights.tensor_info import TensorInfo

Parts = tuple[Part | None, ...]
"""Of one tensor, by rank; None for nothing."""


def plan_parts(
    config: ModelConfig,
    tensors: Mapping[str, TensorInfo],
    size: int,
    head: ModelConfig | None = None,
    *,
    expert_parallel: bool = False,
) -> dict[str, Parts]:
    """What each of ``size`` ranks gets of each of the checkpoint's ``tensors``. ``head``: what else is read of it, to
    draft for the model. ``expert_parallel``: ranks have experts whole.

    What several ranks read each of them gets, as all do the vision tower; what none reads, a tensor or some rows of
    one, the first gets, so that the ranks' parts together are always the checkpoint. Raises as
    :func:`~blade_llm.models.sharding.shard_model` does.
    """
    models = [config] if head is None else [config, head]
    tower = [] if config.vision is None else [vision_tensors(config.vision)]
    ranks = [
        [shard_model(model, rank, size, expert_parallel=expert_parallel).tensors for model in models]
        for rank in range(size)
    ]
    read = [_read_by([*maps, *tower], tensors) for maps in ranks]
    return {name: _complete([parts.get(name) for parts in read], info.shape) for name, info in tensors.items()}


@dataclass(slots=True)
class _Wanted:
    """What a tensor map takes of one tensor."""

    shape: tuple[int, ...]
    indexed: bool
    indices: set[int] = field(default_factory=set)
    """Of matrices that lie one after the other, those that are wanted."""
    rows: set[Run] = field(default_factory=set)
    columns: set[Run] = field(default_factory=set)

    def add(self, block: Slice | None) -> None:
        block = block or Slice()
        if block.index is not None:
            self.indices.add(block.index)
        self.rows.add(self._run(block.rows, 0))
        self.columns.add(self._run(block.columns, 1))

    def part(self) -> Part:
        if self.indexed and len(self.indices) < self.shape[0]:
            return Part(merged([(index, index + 1) for index in self.indices], self.shape[0]))
        found = merged(self.rows, self._extent(0)), merged(self.columns, self._extent(1))
        return Part() if found == (None, None) else Part(*found, self.indexed)

    def _run(self, wanted: range | None, axis: int) -> Run:
        return (0, self._extent(axis)) if wanted is None else (wanted.start, wanted.stop)

    def _extent(self, axis: int) -> int:
        axis += int(self.indexed)
        return self.shape[axis] if axis < len(self.shape) else 1


def _read_by(maps: Sequence[TensorMap], stored: Mapping[str, TensorInfo]) -> dict[str, Part]:
    wanted: dict[str, _Wanted] = {}
    for part in chain.from_iterable(tensors.parts() for tensors in (each.found_in(stored) for each in maps)):
        for name, block in part.blocks():
            if name not in wanted:
                wanted[name] = _Wanted(stored[name].shape, part.index is not None)
            wanted[name].add(block)
    return {name: each.part() for name, each in wanted.items()}


def _complete(parts: Sequence[Part | None], shape: tuple[int, ...]) -> Parts:
    """``parts``, with all of the tensor for the first rank where together they are not all of it."""
    there = [part for part in parts if part is not None]
    if any(part.whole for part in there):
        return tuple(parts)
    if there and (all(part.columns is None for part in there) or all(part.rows is None for part in there)):
        runs = [run for part in there for run in part.rows or part.columns or ()]
        axis = int(there[0].indexed) + int(there[0].rows is None)
        if merged(runs, shape[axis]) is None:
            return tuple(parts)
    return (Part(), *parts[1:])
