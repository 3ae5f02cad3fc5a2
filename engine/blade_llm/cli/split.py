"""``blade_llm_split``: split a checkpoint ahead for tensor parallelism, or join a split one again.

Progress goes to stderr; the folder, as the last line, to stdout.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from blade_llm.cli.failures import FAILURES, end_with
from blade_llm.cli.flags import Flag, FlagParser, boolean, byte_size, positive
from blade_llm.cli.progress.download import download_progress
from blade_llm.cli.progress.work import byte_progress
from blade_llm.hub.locking import locked
from blade_llm.hub.resolve import resolve_model
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import expert_parallel_problem, tensor_parallel_problem
from blade_llm.spec.shard import Shard
from blade_llm.weights.checkpoint import Checkpoint, check_tower, check_weights, open_checkpoint, open_rank
from blade_llm.weights.prediction_head import prediction_head
from blade_llm.weights.split.divide import make_split, require_ours, write_split
from blade_llm.weights.split.join import write_joined
from blade_llm.weights.split.manifest import digest, is_split, read_split, require_size
from blade_llm.weights.split.output import JoinOutput, SplitOutput
from blade_llm.weights.split.plan import plan_parts

_FLAGS: Final = (
    Flag(
        name="model",
        help="the model to split: a folder, or a hub id; with --reverse a folder that was split",
        required=True,
        metavar="MODEL",
    ),
    Flag(
        name="tensor_parallel_size",
        aliases=("-tp",),
        kind=positive,
        help="ranks to split it for, which is what the server is started with then; not needed with --reverse",
    ),
    Flag(
        name="enable_expert_parallel",
        kind=boolean,
        default=False,
        help="give each rank some experts whole, which is how the server is started then; not needed with --reverse",
    ),
    Flag(
        name="output_dir",
        kind=Path,
        metavar="DIR",
        required=True,
        help="where the split model goes, one folder per rank; the same command continues one that was stopped",
    ),
    Flag(
        name="max_shard_size",
        kind=byte_size,
        default="5GB",
        help="largest weight file; one tensor that is larger has a file of its own",
    ),
    Flag(name="reverse", kind=boolean, default=False, help="join a split folder into one whole checkpoint again"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Split or join the model; returns the exit code: 0 when it is done, 1 when not."""
    parser = FlagParser(
        "blade_llm_split",
        "Split a model's weights ahead, so that each rank of a tensor-parallel group reads its own alone.",
        [("split", _FLAGS)],
    )
    parser.usage = "%(prog)s --model MODEL --tensor_parallel_size N --output_dir DIR [flags]"
    flags = parser.parse(argv)
    size = flags["tensor_parallel_size"]
    if not flags["reverse"] and size is None:
        parser.error("--tensor_parallel_size is missing: give the number of ranks")
    if not flags["reverse"] and size == 1:
        parser.error("--tensor_parallel_size 1 is the whole model: give 2 ranks or more")
    if flags["max_shard_size"] < 1:
        parser.error("--max_shard_size 0 holds nothing; give a size like 5GB")
    logging.basicConfig(level=logging.WARNING, format="blade_llm_split: %(message)s")
    output_dir = flags["output_dir"].expanduser().absolute()
    try:
        with download_progress() as progress:
            folder = resolve_model(flags["model"], progress=progress)
        (_join if flags["reverse"] else _split)(folder, output_dir, flags)
    except FAILURES as failure:
        return end_with("blade_llm_split", failure, output_dir, kept=is_split(output_dir))
    print(output_dir)
    return 0


def _split(folder: Path, output_dir: Path, flags: dict[str, Any]) -> None:
    size, expert_parallel = flags["tensor_parallel_size"], flags["enable_expert_parallel"]
    if is_split(folder):
        raise ModelFilesError(
            f"{folder} is split already, for --tensor_parallel_size {read_split(folder).tensor_parallel_size}; join it "
            "with --reverse first, or split the original"
        )
    config = read_model_config(folder)
    problem = tensor_parallel_problem(config, size, expert_parallel=expert_parallel)
    if problem := problem or (expert_parallel_problem(config) if expert_parallel else None):
        raise ModelFilesError(f"{folder}: {problem}")
    checkpoint = _whole(folder, config)
    head = prediction_head(folder, config, checkpoint)
    parts = plan_parts(config, checkpoint.tensors, size, head, expert_parallel=expert_parallel)
    split = make_split(parts, checkpoint.tensors, checkpoint.files, size, expert_parallel=expert_parallel)
    output = SplitOutput.at(output_dir)
    require_ours(output, split)
    output.path.parent.mkdir(parents=True, exist_ok=True)
    with locked(output.lock), byte_progress("splitting") as start:
        write_split(folder, split, checkpoint.tensors, output, max_shard_bytes=flags["max_shard_size"], start=start)
    output.unlock()


def _whole(folder: Path, config: ModelConfig) -> Checkpoint:
    """The checkpoint, which is this model's and in a form that can be split."""
    checkpoint = open_checkpoint(folder)
    if any(file.suffix == ".gguf" for file in checkpoint.files):
        raise ModelFilesError(f"{folder}: GGUF files cannot be split; take the model's safetensors files")
    if problems := [*check_weights(checkpoint, config), *check_tower(checkpoint, config.vision)]:
        raise ModelFilesError(f"{folder}: {'; '.join(problems)}")
    return checkpoint


def _join(folder: Path, output_dir: Path, flags: dict[str, Any]) -> None:
    if not is_split(folder):
        raise ModelFilesError(f"{folder} was not made by blade_llm_split; there is nothing to join")
    split = read_split(folder)
    size = split.tensor_parallel_size
    if flags["tensor_parallel_size"] is not None:
        require_size(folder, split, flags["tensor_parallel_size"])
    experts = split.enable_expert_parallel
    ranks = [open_rank(folder, Shard(rank, size, experts)).tensors for rank in range(size)]
    output = JoinOutput.at(output_dir)
    output.require_usable(digest(folder))
    output.parent.mkdir(parents=True, exist_ok=True)
    with locked(output.lock), byte_progress("joining") as start:
        write_joined(folder, split, ranks, output, max_shard_bytes=flags["max_shard_size"], start=start)


if __name__ == "__main__":
    sys.exit(main())
