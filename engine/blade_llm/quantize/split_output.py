"""The quantised checkpoint as a folder for each rank: divided when it is whole, as ``blade_llm_split`` divides any."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from blade_llm.models.errors import ModelFilesError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import expert_parallel_problem
from blade_llm.weights.checkpoint import open_checkpoint
from blade_llm.weights.output_folder import sync
from blade_llm.weights.prediction_head import prediction_head
from blade_llm.weights.split.divide import make_split, write_split
from blade_llm.weights.split.manifest import is_split, read_rank, read_split
from blade_llm.weights.split.output import SplitOutput
from blade_llm.weights.split.plan import plan_parts
from blade_llm.weights.split.writer import INDEX_NAME, Progress

_PARTS_NAME: Final = "parts"
"""In the staging folder, where the parts are until all are whole."""


class Ranks(msgspec.Struct, frozen=True):
    """For whom the result is divided."""

    size: int
    expert_parallel: bool = False
    """Ranks have experts whole."""


def ranks_of(folder: Path, size: int | None) -> Ranks:
    """Those that the result of the model in ``folder`` is divided for: ``size``, or as many as that was split for.

    Raises :class:`ModelFilesError` where there are no several ranks, or none as it was split for.
    """
    if is_split(folder):
        split = read_split(folder)
        return Ranks(split.tensor_parallel_size, split.enable_expert_parallel)
    if size is None or size < 2:  # one rank is no split
        raise ModelFilesError("--split_output divides the result among ranks: give --tensor_parallel_size, 2 or more")
    return Ranks(size)


def divide(staging: Path, ranks: Ranks, max_shard_bytes: int, start: Callable[[int], Progress]) -> None:
    """Make the parts of the whole checkpoint in ``staging``, or those that an earlier run has not made. Raises
    :class:`ModelFilesError` where there is too little space, ``OSError``."""
    config, checkpoint = read_model_config(staging), open_checkpoint(staging)
    if ranks.expert_parallel and (problem := expert_parallel_problem(config)):
        raise ModelFilesError(problem)
    head, experts = prediction_head(staging, config, checkpoint), ranks.expert_parallel
    parts = plan_parts(config, checkpoint.tensors, ranks.size, head, expert_parallel=experts)
    split = make_split(parts, checkpoint.tensors, checkpoint.files, ranks.size, expert_parallel=experts)
    # Of files that nobody will see times say nothing: without them a run that was stopped ends with the same bytes.
    split = msgspec.structs.replace(
        split, source=tuple(msgspec.structs.replace(file, modified_ns=0) for file in split.source)
    )
    output = SplitOutput.at(staging / _PARTS_NAME)
    write_split(staging, split, checkpoint.tensors, output, max_shard_bytes=max_shard_bytes, start=start)
    for file in output.path.rglob("*"):
        sync(file)
    sync(output.path)


def put_in_place(staging: Path) -> None:
    """Put the parts, which are whole, in the place of the checkpoint that they are of. Goes on where it was stopped."""
    parts = staging / _PARTS_NAME
    if not parts.is_dir():
        return
    for file in (*staging.glob("*.safetensors"), staging / INDEX_NAME):
        file.unlink(missing_ok=True)
    for file in sorted(parts.iterdir()):
        if file.is_dir():
            shutil.rmtree(staging / file.name, ignore_errors=True)
        file.replace(staging / file.name)
    parts.rmdir()
    sync(staging)


def is_made(folder: Path, ranks: Ranks) -> bool:
    """Whether ``folder`` has all parts, as long as they should be."""
    try:
        if not is_split(folder):
            return False
        split = read_split(folder)
        for rank in range(split.tensor_parallel_size):
            read_rank(folder, rank)
    except ModelFilesError:
        return False
    return Ranks(split.tensor_parallel_size, split.enable_expert_parallel) == ranks
