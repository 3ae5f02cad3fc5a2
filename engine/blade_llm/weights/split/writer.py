"""Writes safetensors checkpoints as streams: the header first, as all sizes are known, then the tensors one by one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol, TypeVar

from blade_llm.weights.split.chunks import Bytes
from blade_llm.weights.split.manifest import RankFile
from blade_llm.weights.tensor_info import DTYPE_BITS

MODEL_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
Progress = Callable[[str, int], None]
"""Called with the file's name and the bytes that were written or checked since the last call."""
_HASH_BYTES: Final = 4 << 20


class Described(Protocol):
    """What a file's header says of a tensor."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """The safetensors name."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...


class Sized(Protocol):
    """What a shard is made of."""

    @property
    def nbytes(self) -> int: ...


_Described = TypeVar("_Described", bound=Described)
_Sized = TypeVar("_Sized", bound=Sized)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    chunks: Callable[[], Iterable[Bytes]]
    """Its bytes, row-major."""
    done: Callable[[], None]
    """Called when they are written."""


def write_checkpoint(
    folder: Path, tensors: Iterable[Outgoing], max_shard_bytes: int, progress: Progress
) -> dict[str, RankFile]:
    """Write ``tensors`` into ``folder``, which exists, as ``model.safetensors``, or where that would be more than
    ``max_shard_bytes`` as parts with an index; a larger tensor has a part of its own. Returns all files with checksums.

    Raises ``OSError``.
    """
    shards = list(shards_of(tensors, max_shard_bytes))
    names = shard_names(len(shards))
    written = {name: _write(folder / name, shard, progress) for name, shard in zip(names, shards, strict=True)}
    if len(shards) > 1:
        total = sum(tensor.nbytes for shard in shards for tensor in shard)
        content = index_of(
            {each.name: name for name, shard in zip(names, shards, strict=True) for each in shard}, total
        )
        with _Hashed(folder / INDEX_NAME) as file:
            file.write(content)
        written[INDEX_NAME] = file.summary
    return written


def shard_names(count: int) -> list[str]:
    """Names of a checkpoint's files."""
    if count == 1:
        return [MODEL_NAME]
    return [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]


def index_of(files: Mapping[str, str], total: int) -> bytes:
    """The index of a checkpoint of several files. ``files``: of each tensor; ``total``: bytes of all tensors."""
    return json.dumps({"metadata": {"total_size": total}, "weight_map": files}, indent=1).encode()


def shards_of(tensors: Iterable[_Sized], limit: int) -> Iterator[list[_Sized]]:
    """``tensors`` in order, as many together as ``limit`` bytes allow; at least one."""
    shard: list[_Sized] = []
    size = 0
    for tensor in tensors:
        if shard and size + tensor.nbytes > limit:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.nbytes
    yield shard


def in_file_order(tensors: Iterable[_Described]) -> list[_Described]:
    """Wide types first: each tensor begins at a multiple of its element's size, as readers of memory maps need it."""
    return sorted(tensors, key=lambda tensor: -DTYPE_BITS[tensor.dtype])


def header_of(tensors: Iterable[Described]) -> bytes:
    """The header of a file with ``tensors`` one after the other."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for tensor in tensors:
        end = begin + tensor.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def checksum(path: Path, progress: Progress) -> str:
    """SHA-256 of the file, hexadecimal. Raises ``OSError``."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while data := stream.read(_HASH_BYTES):
            digest.update(data)
            progress(path.name, len(data))
    return digest.hexdigest()


def in_folder(folder: Path, progress: Progress) -> Progress:
    """``progress`` of files in ``folder``, by its name and theirs."""
    return lambda file, nbytes: progress(f"{folder.name}/{file}", nbytes)


class _Hashed:
    """A new file, its checksum and its length."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._stream: IO[bytes] = path.open("wb")
        self._length = 0

    def write(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._stream.write(data)
        self._length += len(data)

    @property
    def summary(self) -> RankFile:
        return RankFile(self._length, self._digest.hexdigest())

    def __enter__(self) -> _Hashed:
        return self

    def __exit__(self, *error: object) -> None:
        with self._stream as stream:
            stream.flush()
            os.fsync(stream.fileno())


def _write(path: Path, tensors: Sequence[Outgoing], progress: Progress) -> RankFile:
    ordered = in_file_order(tensors)
    with _Hashed(path) as file:
        file.write(header_of(ordered))
        for tensor in ordered:
            length = 0
            for chunk in tensor.chunks():
                file.write(chunk.data)
                length += len(chunk)
                progress(path.name, len(chunk))
            assert length == tensor.nbytes, f"{tensor.name}: {length} bytes instead of {tensor.nbytes}"
            tensor.done()
    return file.summary
