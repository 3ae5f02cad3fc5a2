"""Makes a split folder: the whole checkpoint's other files, and a folder for each rank; what is complete is kept."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.split.chunks import Bytes, TensorFiles, part_chunks
from blade_llm.weights.split.manifest import (
    FORMAT,
    RANK_NAME,
    SPLIT_NAME,
    RankManifest,
    Split,
    SplitTensor,
    digest,
    is_split,
    rank_folder,
    read_rank,
    read_split,
    source_file,
    staging_of,
    tensor_bytes,
    write_manifest,
)
from blade_llm.weights.split.output import SplitOutput
from blade_llm.weights.split.part import Part
from blade_llm.weights.split.plan import Parts
from blade_llm.weights.split.space import copy_side_files, require_space, side_files
from blade_llm.weights.split.writer import Outgoing, Progress, checksum, in_folder, write_checkpoint
from blade_llm.weights.tensor_info import TensorInfo

logger = logging.getLogger(__name__)

_HEADER_BYTES: Final = 200
"""Of the header and the index for each tensor, about."""


def make_split(
    parts: Mapping[str, Parts],
    tensors: Mapping[str, TensorInfo],
    files: Sequence[Path],
    size: int,
    *,
    expert_parallel: bool = False,
) -> Split:
    """What a folder for ``size`` ranks is to hold; ``parts`` as :func:`~blade_llm.weights.split.plan.plan_parts` makes
    them of the checkpoint's ``tensors``, which are in ``files``, and of ``expert_parallel``."""
    found = {name: SplitTensor(info.dtype, info.shape, parts[name]) for name, info in tensors.items()}
    return Split(FORMAT, size, tuple(source_file(file) for file in files), found, expert_parallel)


def write_split(
    model_dir: Path,
    split: Split,
    tensors: Mapping[str, TensorInfo],
    output: SplitOutput,
    *,
    max_shard_bytes: int,
    start: Callable[[int], Progress],
) -> list[int]:
    """Make ``output`` what ``split`` describes; returns the ranks that were written, without those that were there.

    ``start``: called with all bytes to be checked or written, gives what is called with those that were. Raises
    :class:`ModelFilesError` for a folder with anything else in it and for too little space on its disk, ``OSError``
    where it cannot be written.
    """
    require_ours(output, split)
    output_dir = output.path
    output_dir.mkdir(parents=True, exist_ok=True)
    sizes = [split.nbytes(rank) for rank in range(split.tensor_parallel_size)]
    progress = start(sum(sizes))
    missing = [rank for rank in range(len(sizes)) if not _is_complete(output_dir, rank, progress)]
    for rank in missing:
        shutil.rmtree(rank_folder(output_dir, rank), ignore_errors=True)
    needed = sum(sizes[rank] + _HEADER_BYTES * len(split.of_rank(rank)) for rank in missing)
    require_space(output_dir, needed, side_files(model_dir))
    if not is_split(output_dir):
        write_manifest(output_dir / SPLIT_NAME, split)
    copy_side_files(model_dir, output_dir)
    for rank in missing:
        folder = rank_folder(output_dir, rank)
        folder.mkdir()

        written = write_checkpoint(
            folder, _outgoing(split, tensors, rank), max_shard_bytes, in_folder(folder, progress)
        )
        write_manifest(folder / RANK_NAME, RankManifest(rank, digest(output_dir), written))
    return missing


def require_ours(output: SplitOutput, split: Split) -> None:
    """Raise :class:`ModelFilesError` unless the folder is new, empty or an earlier attempt at the same."""
    output_dir = output.path
    if output.content <= {staging_of(output_dir / SPLIT_NAME).name} and not output_dir.is_file():
        return
    if not is_split(output_dir):
        raise ModelFilesError(
            f"{output_dir} is not empty and was not made by blade_llm_split; delete it or give another --output_dir"
        )
    found = read_split(output_dir)
    if found == split:
        return
    size = found.tensor_parallel_size
    other = "of another model, or of one that has changed since"
    if size != split.tensor_parallel_size:
        other = f"for --tensor_parallel_size {size}, not {split.tensor_parallel_size}"
    elif found.enable_expert_parallel != split.enable_expert_parallel:
        other = f"{'with' if found.enable_expert_parallel else 'without'} --enable_expert_parallel"
    raise ModelFilesError(f"{output_dir} holds a split {other}; delete it or give another --output_dir")


def _is_complete(output_dir: Path, rank: int, progress: Progress) -> bool:
    """Whether the rank's folder is whole, by sizes and checksums."""
    if not is_split(output_dir):
        return False
    try:
        manifest = read_rank(output_dir, rank)
    except ModelFilesError:
        return False
    folder = rank_folder(output_dir, rank)
    show = in_folder(folder, progress)
    if all(checksum(folder / name, show) == file.sha256 for name, file in manifest.files.items()):
        return True
    logger.warning("%s is damaged and written again", folder)
    return False


def _outgoing(split: Split, tensors: Mapping[str, TensorInfo], rank: int) -> Iterator[Outgoing]:
    files = TensorFiles()
    for name, part in split.of_rank(rank).items():
        info, tensor = tensors[name], split.tensors[name]

        def chunks(info: TensorInfo = info, part: Part = part) -> Iterator[Bytes]:
            return part_chunks(files.read(info), info.shape, part)

        shape = part.shape(tensor.shape)
        yield Outgoing(name, tensor.dtype, shape, tensor_bytes(tensor, part), chunks, files.release)
