"""Joins the ranks' folders of a split one into a whole checkpoint, each tensor byte for byte what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.split.chunks import Bytes, TensorFiles, joined_chunks
from blade_llm.weights.split.manifest import AGAIN, Split, SplitTensor, digest, rank_folder, read_rank, tensor_bytes
from blade_llm.weights.split.output import JoinOutput
from blade_llm.weights.split.part import Part
from blade_llm.weights.split.space import copy_side_files, require_space, side_files
from blade_llm.weights.split.writer import Outgoing, Progress, checksum, in_folder, write_checkpoint
from blade_llm.weights.tensor_info import TensorInfo


def write_joined(
    folder: Path,
    split: Split,
    ranks: Sequence[Mapping[str, TensorInfo]],
    output: JoinOutput,
    *,
    max_shard_bytes: int,
    start: Callable[[int], Progress],
) -> None:
    """Make ``output`` the whole model that ``folder`` holds the parts of, which cannot be loaded before it is whole.

    ``ranks``: the tensors in each rank's files; ``start``: as of :func:`~blade_llm.weights.split.divide.write_split`.
    Raises :class:`ModelFilesError` for a part whose checksum is wrong, naming rank and file, for a folder that is not
    empty and too little space, ``OSError`` where it cannot be written.
    """
    source = digest(folder)
    output.require_usable(source)
    if output.is_whole(source):
        output.finish(source)
        return
    total = sum(tensor_bytes(tensor, Part()) for tensor in split.tensors.values())
    output.discard()
    output.parent.mkdir(parents=True, exist_ok=True)
    require_space(output.parent, total, side_files(folder))
    manifests = [read_rank(folder, rank) for rank in range(split.tensor_parallel_size)]
    progress = start(total + sum(file.bytes for manifest in manifests for file in manifest.files.values()))
    for manifest in manifests:
        own = rank_folder(folder, manifest.rank)
        for name, file in manifest.files.items():
            if checksum(own / name, in_folder(own, progress)) != file.sha256:
                raise ModelFilesError(
                    f"{folder}: {own.name}/{name} of rank {manifest.rank} is damaged (its SHA-256 is not the one of "
                    f"when it was written); {AGAIN}"
                )
    output.begin()
    try:
        write_checkpoint(output.staging, _outgoing(split, ranks), max_shard_bytes, progress)
        copy_side_files(folder, output.staging)
        output.require_usable(source)
    except BaseException:
        output.discard()
        raise
    output.finish(source)


def whole_chunks(
    files: TensorFiles, ranks: Sequence[Mapping[str, TensorInfo]], name: str, tensor: SplitTensor
) -> Iterator[Bytes]:
    """The bytes of the whole tensor ``name``, row-major. ``ranks``: as of :func:`write_joined`."""
    there = [(part, rank) for rank, part in enumerate(tensor.ranks) if part is not None]
    whole = [each for each in there if each[0].whole]
    pieces = [(part, files.read(ranks[rank][name])) for part, rank in whole[:1] or there]
    return joined_chunks(pieces, tensor.shape, tensor_bytes(tensor, Part()))


def _outgoing(split: Split, ranks: Sequence[Mapping[str, TensorInfo]]) -> Iterator[Outgoing]:
    files = TensorFiles()
    for name, tensor in split.tensors.items():

        def chunks(name: str = name, tensor: SplitTensor = tensor) -> Iterator[Bytes]:
            return whole_chunks(files, ranks, name, tensor)

        yield Outgoing(name, tensor.dtype, tensor.shape, tensor_bytes(tensor, Part()), chunks, files.release)
