"""The weight files of a model folder, as their headers describe them: safetensors, or where there are none, ``.bin``.

Only headers are read (a few kilobytes even for huge models), without torch, and every size is compared with the file's
own, so that a download that stopped half-way is reported as that and not as a crash in a memory map.
Format of safetensors: 8 bytes little-endian header length, a JSON header, then the data that its offsets point into.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from blade_llm.models.errors import ModelFilesError
from blade_llm.models.tensors import Wanted, WantedPart
from blade_llm.models.vision.names import vision_tensors
from blade_llm.spec.shard import Shard
from blade_llm.spec.slices import Slice
from blade_llm.spec.vision.tower import VisionSpec
from blade_llm.weights.gguf.index import INDEX_NAME as GGUF_INDEX_NAME
from blade_llm.weights.gguf.index import MODEL_NAME as GGUF_NAME
from blade_llm.weights.gguf.index import PLAIN, linked_files, read_gguf_header
from blade_llm.weights.gguf.index import TYPES as GGUF_TYPES
from blade_llm.weights.pickled import read_pickle_header
from blade_llm.weights.split.manifest import (
    AGAIN,
    is_split,
    rank_folder,
    read_rank,
    read_split,
    require_experts,
    require_size,
)
from blade_llm.weights.split.part import Part
from blade_llm.weights.tensor_info import DTYPE_BITS, TensorInfo

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
PICKLED_INDEX_NAME: Final = "pytorch_model.bin.index.json"
PICKLED_NAME: Final = "pytorch_model.bin"
WEIGHT_DTYPES: Final = ("BF16", "F16", "F32", *(kind for kind in GGUF_TYPES if kind not in PLAIN))
_SCALED_DTYPES: Final = ("I8", "F8_E4M3")
"""Those of weights that are quantised one by one, under the name of plain ones."""
"""Types the loader turns into the compute type."""

_HABITUAL: Final = (
    *("lm_head.weight", "rotary_emb.inv_freq"),
    *(".input_scale", ".input_zero_point", ".k_scale", ".v_scale"),  # activations and KV cache are not rounded here
)
_MAX_HEADER_BYTES: Final = 100_000_000
_SHARD_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<index>\d+)-of-(?P<count>\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All weights of a model folder, or of one that was split, those that a rank reads."""

    files: tuple[Path, ...]
    tensors: dict[str, TensorInfo]
    """With whole shapes."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """What the files have of tensors that are not whole in them."""
    elsewhere: Collection[str] = ()
    """Names of tensors that other ranks alone have."""

    @property
    def names(self) -> Collection[str]:
        """Names of all tensors of the model's checkpoint, which tell its form."""
        return self.tensors.keys() | set(self.elsewhere) if self.elsewhere else self.tensors

    def stored_block(self, name: str, block: Slice | None = None) -> Slice | None:
        """Where the file has ``block`` of the whole tensor ``name``; None for all that is there.

        Raises :class:`ModelFilesError` for one that was left to another rank.
        """
        if name not in self.parts:
            return block
        try:
            return self.parts[name].find(block)
        except ValueError as error:
            raise ModelFilesError(
                f"{self.tensors[name].file} has not the part of {name!r} that is needed ({error}); split the model "
                "again with the blade_llm_split of this version"
            ) from None

    @property
    def total_bytes(self) -> int:
        """Bytes of tensor data as stored."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def open_checkpoint(model_dir: Path, ranks: int | None = None, *, expert_parallel: bool = False) -> Checkpoint:
    """Read the headers of the folder's weight files and check them against the files' sizes.

    ``model.safetensors`` is used alone when present, else the files of ``model.safetensors.index.json``, else every
    ``*.safetensors``, else ``pytorch_model.bin`` or the files of its index. Raises :class:`ModelFilesError` for a
    missing or empty folder, no weights, a file or tensor that the index names and that is missing, a truncated, corrupt
    or unreadable file, a pickle with code, and a tensor stored twice.

    A split folder (:mod:`blade_llm.weights.split`) is described as the whole checkpoint: all ranks' files, which must
    be there and as long as they should be, and whole tensors, each in the first file of the first rank that has some
    of it. ``ranks``: raise :class:`ModelFilesError` where it was split for another number of them, or where these have
    experts whole and shall not, or shall and have not (``expert_parallel``). :func:`open_rank` is what reads one.
    """
    try:
        return _open_split(model_dir, ranks, expert_parallel) if is_split(model_dir) else _open_checkpoint(model_dir)
    except OSError as error:
        raise ModelFilesError(f"{error.filename} cannot be read: {error.strerror}") from error


def open_rank(model_dir: Path, shard: Shard) -> Checkpoint:
    """What a rank reads: its own folder alone where ``model_dir`` was split for so many ranks, else all of it.

    Raises as :func:`open_checkpoint` does, and for a folder that was split for another number of ranks, or divides
    experts in another way.
    """
    try:
        return _open_rank(model_dir, shard) if is_split(model_dir) else _open_checkpoint(model_dir)
    except OSError as error:
        raise ModelFilesError(f"{error.filename} cannot be read: {error.strerror}") from error


def _open_split(model_dir: Path, ranks: int | None, expert_parallel: bool) -> Checkpoint:
    split = read_split(model_dir)
    if ranks is not None:
        require_size(model_dir, split, ranks)
        require_experts(model_dir, split, expert_parallel)
    names = [sorted(read_rank(model_dir, rank).files) for rank in range(split.tensor_parallel_size)]
    files = [
        [rank_folder(model_dir, rank) / name for name in own if name != INDEX_NAME] for rank, own in enumerate(names)
    ]
    tensors = {}
    for name, tensor in split.tensors.items():
        file = files[next(rank for rank, part in enumerate(tensor.ranks) if part is not None)][0]
        nbytes = math.prod(tensor.shape) * DTYPE_BITS[tensor.dtype] // 8
        tensors[name] = TensorInfo(name, tensor.dtype, tensor.shape, file, 0, nbytes)
    return Checkpoint(tuple(file for own in files for file in own), tensors)


def _open_rank(model_dir: Path, shard: Shard) -> Checkpoint:
    split = read_split(model_dir)
    require_size(model_dir, split, shard.size)
    require_experts(model_dir, split, shard.expert_parallel)
    read_rank(model_dir, shard.rank)
    found = _open_checkpoint(rank_folder(model_dir, shard.rank))
    tensors, parts = {}, {}
    for name, part in split.of_rank(shard.rank).items():
        whole, own = split.tensors[name], found.tensors.get(name)
        if own is None or own.dtype != whole.dtype or own.shape != part.shape(whole.shape):
            raise ModelFilesError(f"{model_dir}: the files of rank {shard.rank} have another {name!r}; {AGAIN}")
        tensors[name] = replace(own, shape=whole.shape)
        if not part.whole:
            parts[name] = part
    return Checkpoint(found.files, tensors, parts, split.tensors.keys() - tensors.keys())


def _open_checkpoint(model_dir: Path) -> Checkpoint:
    if not model_dir.is_dir():
        raise ModelFilesError(f"model folder {model_dir} does not exist")
    if not any(model_dir.iterdir()):
        raise ModelFilesError(f"model folder {model_dir} is empty; download the model into it again")
    files, index, index_name = _weight_files(model_dir)
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for name, tensor in _READERS[file.suffix](file).items():
            if name in tensors:
                raise ModelFilesError(
                    f"tensor {name!r} is stored twice, in {tensors[name].file.name} and in {file.name}; "
                    f"{model_dir} mixes two checkpoints: download the model into an empty folder"
                )
            tensors[name] = tensor
    for name, file_name in index.items():
        if name not in tensors or tensors[name].file.name != file_name:
            raise ModelFilesError(
                f"{model_dir / index_name} says that tensor {name!r} is in {file_name}, where it is not; "
                "index and files belong to different downloads: download the model again"
            )
    return Checkpoint(tuple(files), tensors)


def read_tensor_headers(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one ``*.safetensors`` or ``*.bin`` file, checked against its size. Raises
    :class:`ModelFilesError`."""
    try:
        return _READERS[file.suffix](file)
    except OSError as error:
        raise ModelFilesError(f"{file} cannot be read: {error.strerror}") from error


def check_weights(checkpoint: Checkpoint, config: Wanted) -> list[str]:
    """What keeps ``checkpoint`` from being that of ``config``, as :func:`check_tensors`; empty when it is."""
    tensors = config.tensors.found_in(checkpoint.names)
    older = {
        name: shape
        for name, shape in tensors.older_shapes.items()
        if name in checkpoint.tensors and checkpoint.tensors[name].shape == shape
    }
    return check_tensors(checkpoint, tensors.expected() | older, tensors.types)


def check_tower(checkpoint: Checkpoint, vision: VisionSpec | None) -> list[str]:
    """The same of a model's vision tower; empty where it has none."""
    return [] if vision is None else check_weights(checkpoint, WantedPart(vision_tensors(vision)))


def check_tensors(
    checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]], types: Mapping[str, tuple[str, ...]] | None = None
) -> list[str]:
    """What keeps ``checkpoint`` from being the model whose tensors are ``expected``; empty when it is.

    Names missing tensors, wrong shapes and types that are not plain weights, or not those of ``types``. Tensors beyond
    ``expected`` are fine.
    """
    types = types or {}
    problems: list[str] = []
    missing = [name for name in expected if name not in checkpoint.tensors]
    if missing:
        problems.append(
            f"{len(missing)} of {len(expected)} tensors are missing: {_some(missing)}; "
            "config.json and the weights do not belong together, or the download is incomplete"
        )
    present = [(checkpoint.tensors[name], shape) for name, shape in expected.items() if name in checkpoint.tensors]
    wrong = [
        f"{tensor.name} is {list(tensor.shape)} in {tensor.file.name}, config.json asks for {list(shape)}"
        for tensor, shape in present
        if tensor.shape != tuple(shape) and not (shape == () and math.prod(tensor.shape) == 1)
    ]
    if wrong:
        problems.append(
            f"wrong shape: {_some(wrong, separator='; ')}; config.json and the weights do not match: download the "
            "model again into an empty folder"
        )
    odd = [tensor for tensor, _ in present if tensor.dtype not in WEIGHT_DTYPES and tensor.name not in types]
    problems += [
        f"{tensor.name} is {tensor.dtype} in {tensor.file.name}: {_called(types[tensor.name])}"
        for tensor, _ in present
        if tensor.name in types and tensor.dtype not in types[tensor.name]
    ]
    if odd:
        found = _some([f"{tensor.name} is {tensor.dtype} in {tensor.file.name}" for tensor in odd])
        scaled = bool(types) and any(tensor.dtype in _SCALED_DTYPES for tensor in odd)
        problems.append(
            f"unsupported weight type: {found}; supported are BF16, F16, F32"
            f"{', others only with the scales of their quantisation, which are missing here' if scaled else ''}"
        )
    return problems


def _called(types: tuple[str, ...]) -> str:
    return "these are indices, I64" if types == ("I64",) else f"it must be {' or '.join(types)}"


def unused_tensors(
    checkpoint: Checkpoint,
    expected: Mapping[str, tuple[int, ...]],
    skipped: tuple[str, ...] = (),
    vision: tuple[str, ...] = (),
) -> str:
    """The tensors that no part of the model takes, in words; empty without any. They do no harm, but may mean that
    ``config.json`` is another model's. A tied head and tables of rotary frequencies are stored by habit, and scales of
    activations are not needed. ``skipped``: what names of layers for multi-token prediction begin with; ``vision``:
    those of a vision tower, which takes its own."""
    names = [name for name in checkpoint.tensors if name not in expected and not name.endswith(_HABITUAL)]
    names = [name for name in names if not name.startswith(vision)]
    known = [name for name in names if name.startswith(skipped)]
    others = [name for name in names if not name.startswith(skipped)]
    layers = [prefix.rstrip(".") for prefix in skipped if any(name.startswith(prefix) for name in known)]
    said = [f"{len(others)} tensor(s) are not used: {_some(others)}"] if others else []
    if known:
        said.append(
            f"layers for multi-token prediction are for --decode_algo mtp alone: {_some(layers)} ({len(known)} "
            "tensor(s))"
        )
    return "; ".join(said)


def _some(names: list[str], separator: str = ", ", limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return separator.join(names[:limit]) + more


def _weight_files(model_dir: Path) -> tuple[list[Path], dict[str, str], str]:
    """The files to read, and the index (tensor to file name; empty without one) with its name."""
    if (model_dir / GGUF_NAME).is_file() and (model_dir / GGUF_INDEX_NAME).is_file():  # a folder made for a GGUF file
        return linked_files(model_dir), {}, ""
    safe = sorted(path for path in model_dir.glob("*.safetensors") if not path.name.startswith("consolidated"))
    for single, index_name in ((SINGLE_NAME, INDEX_NAME), (PICKLED_NAME, PICKLED_INDEX_NAME)):
        if (model_dir / single).is_file():
            return [model_dir / single], {}, index_name
        if (model_dir / index_name).is_file():
            index = _read_index(model_dir / index_name, Path(single).suffix)
            files = [model_dir / name for name in sorted(set(index.values()))]
            _require_files(files, f"named in {index_name}")
            return files, index, index_name
        if safe:
            break
    if not safe:
        others = sorted(path.name for path in (*model_dir.glob("*.bin"), *model_dir.glob("*.pth")))
        found = f" (found {_some(others)}, which is not read)" if others else ""
        raise ModelFilesError(
            f"{model_dir} holds no *.safetensors and no {PICKLED_NAME}{found}; give a folder in the Hugging Face "
            "layout, with config.json and weights"
        )
    for file in safe:
        if match := _SHARD_NAME.fullmatch(file.name):
            digits, count = len(match["index"]), int(match["count"])
            names = (f"{match['stem']}-{n:0{digits}d}-of-{match['count']}.safetensors" for n in range(1, count + 1))
            _require_files([model_dir / name for name in names], f"one of {count} parts")
    return safe, {}, INDEX_NAME


def _require_files(files: list[Path], reason: str) -> None:
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelFilesError(
            f"{files[0].parent}: {_some(missing)} ({reason}) is missing; the download is incomplete: download it again"
        )


def _read_index(path: Path, suffix: str) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        index = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelFilesError(f"{path} is not an index of weight files; download it again") from None
    for file in index.values():
        if Path(file).name != file or not file.endswith(suffix):
            raise ModelFilesError(f"{path} names {file!r}, which is not a *{suffix} file beside it")
    return index


def _read_header(file: Path) -> dict[str, TensorInfo]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = int.from_bytes(prefix, "little")
        if prefix.startswith(b"version "):
            raise ModelFilesError(f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
        if len(prefix) < 8 or (length <= _MAX_HEADER_BYTES and 8 + length > size):
            expected = 8 + length if len(prefix) == 8 else 8
            raise ModelFilesError(
                f"{file} is truncated: the header needs {expected} bytes, the file has {size}; download it again"
            )
        if not 2 <= length <= _MAX_HEADER_BYTES:
            raise ModelFilesError(f"{file} is not a safetensors file (header length {length}); download it again")
        raw = stream.read(length)
    data = 8 + length
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
        header.pop("__metadata__", None)
        tensors = {name: _tensor(name, entry, file, data) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFilesError(f"{file}: corrupt safetensors header ({error}); download it again") from None
    end = max((tensor.end for tensor in tensors.values()), default=data)
    if end > size:
        raise ModelFilesError(
            f"{file} is truncated: its header describes {end} bytes, the file has {size}; download it again"
        )
    if sum(tensor.nbytes for tensor in tensors.values()) != size - data:
        raise ModelFilesError(
            f"{file}: corrupt safetensors header (its tensors do not cover the {size - data} bytes of data exactly); "
            "download it again"
        )
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} stands twice")
        found[name] = value
    return found


def _tensor(name: str, entry: dict[str, Any], file: Path, data: int) -> TensorInfo:
    dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if dtype not in DTYPE_BITS:
        raise ValueError(f"{name!r} has the unknown type {dtype!r}")
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"{name!r} has a shape or offset that is not a non-negative integer")
    needed = math.prod(shape) * DTYPE_BITS[dtype] // 8
    if end - begin != needed:
        raise ValueError(f"{name!r} takes {needed} bytes as {dtype} {list(shape)}, its offsets span {end - begin}")
    return TensorInfo(name, dtype, shape, file, data + begin, data + end)


_READERS: Final = {".safetensors": _read_header, ".bin": read_pickle_header, ".gguf": read_gguf_header}
"""What reads the header of a file, by the end of its name."""
