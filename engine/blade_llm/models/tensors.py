"""The tensors that a model needs of its checkpoint. Free of torch, for ``blade_llm_check``; the loader uses the same
map, so both always agree."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from blade_llm.spec.shard import Shard
from blade_llm.spec.tensors import TensorMap


class Wanted(Protocol):
    """What is to be read of a checkpoint: a model's configuration says so of the model."""

    @property
    def tensors(self) -> TensorMap:
        """Where the checkpoint has it."""

    @property
    def shard(self) -> Shard | None:
        """Whose part it is; None: the whole."""


@dataclass(frozen=True, slots=True)
class WantedPart:
    """Tensors that are read by themselves."""

    tensors: TensorMap
    shard: Shard | None = None


def expected_tensors(config: Wanted, present: Collection[str] | None = None) -> dict[str, tuple[int, ...]]:
    """Names of all tensors of ``config`` and their shapes, as they are in the checkpoint; the output matrix is left out
    when it is the embedding table.

    ``present``: names that the checkpoint has, which tell the form of the names.
    """
    return (config.tensors if present is None else config.tensors.found_in(present)).expected()
