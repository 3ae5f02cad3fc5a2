"""The tensors that a model needs of its checkpoint. Free of torch, for ``blade_llm_check``; the loader uses the same
map, so both always agree."""

from __future__ import annotations

from collections.abc import Collection

from blade_llm.models.config import ModelConfig


def expected_tensors(config: ModelConfig, present: Collection[str] | None = None) -> dict[str, tuple[int, ...]]:
    """Names of all tensors of ``config`` and their shapes, as they are in the checkpoint; the output matrix is left out
    when it is the embedding table.

    ``present``: names that the checkpoint has, which tell the form of the names.
    """
    return (config.tensors if present is None else config.tensors.found_in(present)).expected()
