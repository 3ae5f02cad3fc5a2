"""The two JSON files of a split folder: ``blade_split.json`` says which rank has what of each tensor, and
``blade_rank.json`` in a rank's own folder, written last, that all its files are there, with their checksums."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.output_folder import write_whole
from blade_llm.weights.split.part import Part
from blade_llm.weights.tensor_info import DTYPE_BITS

SPLIT_NAME: Final = "blade_split.json"
RANK_NAME: Final = "blade_rank.json"
FORMAT: Final = 1
AGAIN: Final = "run the same blade_llm_split again, or copy the folder again"
_START_BYTES: Final = 1 << 20
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class SourceFile(msgspec.Struct, frozen=True):
    """A weight file of the whole checkpoint, by what tells another one of the same name from it."""

    name: str
    bytes: int
    modified_ns: int
    start_sha256: str
    """Of the first MiB, which has the header."""


class SplitTensor(msgspec.Struct, frozen=True):
    """A tensor of the whole checkpoint."""

    dtype: str
    """The safetensors name."""
    shape: tuple[int, ...]
    ranks: tuple[Part | None, ...]
    """What each rank has of it; None for nothing."""


class Split(msgspec.Struct, frozen=True):
    """``blade_split.json``."""

    format: int
    tensor_parallel_size: int
    source: tuple[SourceFile, ...]
    tensors: dict[str, SplitTensor]
    enable_expert_parallel: bool = False
    """Ranks have experts whole."""

    def of_rank(self, rank: int) -> dict[str, Part]:
        """Names of the tensors in the rank's folder, and which part of each is there."""
        return {name: part for name, tensor in self.tensors.items() if (part := tensor.ranks[rank]) is not None}

    def nbytes(self, rank: int) -> int:
        """Bytes of the rank's tensors."""
        return sum(tensor_bytes(self.tensors[name], part) for name, part in self.of_rank(rank).items())


class RankFile(msgspec.Struct, frozen=True):
    """A weight file of a rank's folder."""

    bytes: int
    sha256: str


class RankManifest(msgspec.Struct, frozen=True):
    """``blade_rank.json``."""

    rank: int
    split: str
    """:func:`digest` of the ``blade_split.json`` that it belongs to."""
    files: dict[str, RankFile]


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a rank's files are."""
    return folder / f"rank_{rank}"


def tensor_bytes(tensor: SplitTensor, part: Part) -> int:
    """Bytes of a part of ``tensor``. Raises ``ValueError`` as :meth:`Part.shape` does."""
    size = DTYPE_BITS[tensor.dtype]
    for extent in part.shape(tensor.shape):
        size *= extent
    return size // 8


def is_split(folder: Path) -> bool:
    """Whether ``folder`` holds a split checkpoint, or the beginning of one."""
    return (folder / SPLIT_NAME).is_file()


def read_split(folder: Path) -> Split:
    """What the split folder holds. Raises :class:`ModelFilesError`."""
    split = _read(folder / SPLIT_NAME, Split)
    if split.format != FORMAT:
        raise ModelFilesError(
            f"{folder / SPLIT_NAME} has format {split.format}, this version reads {FORMAT}; split the model again"
        )
    size = split.tensor_parallel_size
    for name, tensor in split.tensors.items():
        try:
            if len(tensor.ranks) != size or tensor.dtype not in DTYPE_BITS:
                raise ValueError("ranks or type")
            for part in tensor.ranks:
                if part is not None:
                    part.shape(tensor.shape)
        except ValueError as error:
            raise ModelFilesError(f"{folder / SPLIT_NAME}: {name!r} makes no sense ({error}); {AGAIN}") from None
    return split


def read_rank(folder: Path, rank: int) -> RankManifest:
    """What is in a rank's folder, whose files are there and as long as they should be.

    Raises :class:`ModelFilesError`, which names the rank, for one that is not complete or belongs to another split.
    """
    own = rank_folder(folder, rank)
    if not own.is_dir():
        raise ModelFilesError(f"{folder}: the part of rank {rank} is missing ({own.name}); {AGAIN}")
    if not (own / RANK_NAME).is_file():
        raise ModelFilesError(f"{folder}: the part of rank {rank} is not complete ({own.name}/{RANK_NAME}); {AGAIN}")
    found = _read(own / RANK_NAME, RankManifest)
    if found.rank != rank or found.split != digest(folder):
        raise ModelFilesError(
            f"{own} is not the part of rank {rank} that {folder / SPLIT_NAME} describes (it is of rank {found.rank}, "
            "or of another split); copy it again, or split the model into an empty folder"
        )
    for name, file in found.files.items():
        path = own / name
        if not path.is_file():
            raise ModelFilesError(f"{folder}: {own.name}/{name} of rank {rank} is missing; {AGAIN}")
        if (size := path.stat().st_size) != file.bytes:
            raise ModelFilesError(
                f"{folder}: {own.name}/{name} of rank {rank} has {size} bytes instead of {file.bytes}; {AGAIN}"
            )
    return found


def require_experts(folder: Path, split: Split, expert_parallel: bool) -> None:
    """Raise :class:`ModelFilesError` where the folder's ranks have experts in another way."""
    if split.enable_expert_parallel != expert_parallel:
        made, change = ("with", "give it") if split.enable_expert_parallel else ("without", "leave it out")
        raise ModelFilesError(
            f"{folder} holds a model split {made} --enable_expert_parallel; {change}, or split the original again "
            f"{'without' if split.enable_expert_parallel else 'with'} it"
        )


def require_size(folder: Path, split: Split, size: int) -> None:
    """Raise :class:`ModelFilesError` where the folder was split for another number of ranks than ``size``."""
    if split.tensor_parallel_size != size:
        made = split.tensor_parallel_size
        raise ModelFilesError(
            f"{folder} holds a model split for --tensor_parallel_size {made}, not {size}; give "
            f"--tensor_parallel_size {made}, or split the model for {size}, or join it: blade_llm_split --reverse"
        )


def source_file(file: Path) -> SourceFile:
    """How ``file`` is described in the manifest."""
    status = file.stat()
    with file.open("rb") as stream:
        start = hashlib.sha256(stream.read(_START_BYTES)).hexdigest()
    return SourceFile(file.name, status.st_size, status.st_mtime_ns, start)


def digest(folder: Path) -> str:
    """Names the split: SHA-256 of its ``blade_split.json``."""
    return hashlib.sha256((folder / SPLIT_NAME).read_bytes()).hexdigest()


def staging_of(path: Path) -> Path:
    """Where :func:`write_manifest` writes before the file is whole."""
    return path.with_name(f".{path.name}.staging")


def write_manifest(path: Path, manifest: msgspec.Struct) -> None:
    """Write the file whole or not at all, after everything that was written before it."""
    write_whole(path, msgspec.json.encode(manifest), staging_of(path))


def _read(path: Path, kind: type[_Struct]) -> _Struct:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelFilesError(f"{path} is damaged ({error}); {AGAIN}") from None
