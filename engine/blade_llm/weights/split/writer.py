"""Writes safetensors checkpoints as streams: the header first, as all sizes are known, then the tensors one by one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from blade_llm.weights.split.chunks import Bytes
from blade_llm.weights.split.manifest import RankFile
from blade_llm.weights.tensor_info import DTYPE_BITS

MODEL_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
Progress = Callable[[str, int], None]
"""Called with the file's name and the bytes that were written or checked since the last call."""
_HASH_BYTES: Final = 4 << 20


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
    shards = list(_shards(tensors, max_shard_bytes))
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [MODEL_NAME]
    written = {name: _write(folder / name, shard, progress) for name, shard in zip(names, shards, strict=True)}
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for shard in shards for tensor in shard)},
            "weight_map": {each.name: name for name, shard in zip(names, shards, strict=True) for each in shard},
        }
        content = json.dumps(index, indent=1).encode()
        with _Hashed(folder / INDEX_NAME) as file:
            file.write(content)
        written[INDEX_NAME] = file.summary
    return written


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


def _shards(tensors: Iterable[Outgoing], limit: int) -> Iterator[list[Outgoing]]:
    shard: list[Outgoing] = []
    size = 0
    for tensor in tensors:
        if shard and size + tensor.nbytes > limit:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.nbytes
    yield shard


def _write(path: Path, tensors: Sequence[Outgoing], progress: Progress) -> RankFile:
    # Wide types first: each tensor begins at a multiple of its element's size, as readers of memory maps need it.
    ordered = sorted(tensors, key=lambda tensor: -DTYPE_BITS[tensor.dtype])
    with _Hashed(path) as file:
        file.write(_header(ordered))
        for tensor in ordered:
            length = 0
            for chunk in tensor.chunks():
                file.write(chunk.data)
                length += len(chunk)
                progress(path.name, len(chunk))
            assert length == tensor.nbytes, f"{tensor.name}: {length} bytes instead of {tensor.nbytes}"
            tensor.done()
    return file.summary


def _header(tensors: Iterable[Outgoing]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for tensor in tensors:
        end = begin + tensor.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
