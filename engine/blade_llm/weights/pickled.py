"""The tensors of a ``.bin`` file as ``torch.save`` writes it (a zip of one pickle and the storages), without torch and
without running anything of it.

A pickle is a program. This reader knows the handful of names that a state dict needs and refuses all others, so that a
file with code in it is reported as that; torch then reads the same file with ``weights_only=True``, which is as strict.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.tensor_info import DTYPE_BITS, TensorInfo

_STORAGES: Final = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip
_MAX_PICKLE_BYTES: Final = 100_000_000
_MAX_DIMENSIONS: Final = 64
_INSTEAD: Final = "use the model's safetensors files, or convert it on a machine where that code may run"


class _StorageType(NamedTuple):
    dtype: str


class _Storage(NamedTuple):
    dtype: str
    key: str
    elements: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_pickle_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of ``file`` by name; offsets are those of each one's storage.

    Raises :class:`ModelFilesError` for a file that is no such zip, is cut short, needs code, or holds no state dict.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return _read(file, archive)
    except zipfile.BadZipFile:
        raise _not_a_zip(file) from None
    except (OverflowError, ValueError, EOFError, IndexError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ModelFilesError):
            raise
        raise ModelFilesError(f"{file}: corrupt pickle ({error}); download it again") from None
    except (pickle.UnpicklingError, struct.error, AssertionError, RecursionError, MemoryError) as error:
        raise ModelFilesError(f"{file}: corrupt pickle ({error}); download it again") from None


def _read(file: Path, archive: zipfile.ZipFile) -> dict[str, TensorInfo]:
    members = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1 or members[pickles[0]].file_size > _MAX_PICKLE_BYTES:
        raise ModelFilesError(f"{file} is a zip archive, but not one of torch.save; download it again")
    folder = pickles[0].removesuffix("data.pkl")
    content = _StateDictReader(file, archive.read(pickles[0])).load()
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, _Tensor) for name, value in content.items()
    ):
        raise ModelFilesError(f"{file} is no state dict (names to tensors); save the model's state_dict() alone")
    tensors = {}
    for name, tensor in content.items():
        member = members.get(f"{folder}data/{tensor.storage.key}")
        size = _element_bytes(tensor.storage.dtype)
        needed = tensor.storage.elements * size
        if member is None or member.compress_type != zipfile.ZIP_STORED or member.file_size != needed:
            raise ModelFilesError(
                f"{file}: the data of tensor {name!r} is not there or not {needed} bytes long; download it again"
            )
        if _reaches_beyond(tensor):
            raise ModelFilesError(
                f"{file}: tensor {name!r} of shape {list(tensor.shape)} reaches beyond its "
                f"{tensor.storage.elements} stored elements; download it again"
            )
        begin = member.header_offset
        info = TensorInfo(name, tensor.storage.dtype, tensor.shape, file, begin, begin + math.prod(tensor.shape) * size)
        tensors[name] = info
    return tensors


def _reaches_beyond(tensor: _Tensor) -> bool:
    """Whether an element lies beyond the storage."""
    last = tensor.offset + sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride, strict=True))
    return bool(math.prod(tensor.shape)) and last >= tensor.storage.elements


class _StateDictReader(pickle._Unpickler):
    """Makes descriptions of tensors, and nothing else.

    The reader in Python, whose memo is a dict: the one in C makes a list as long as the largest number of an entry.
    """

    dispatch: ClassVar = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }
    """Without the one that reserves memory for a length before it reads."""

    def __init__(self, file: Path, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _StorageType(_STORAGES[name])
        found = _KNOWN.get((module, name))
        if found is None:
            raise ModelFilesError(
                f"{self._file} is a pickle that needs {module}.{name}, which is code and is never run; {_INSTEAD}"
            )
        return found

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage_type, key, _, elements = pid
        if kind != "storage" or not isinstance(storage_type, _StorageType) or not isinstance(key, str):
            raise pickle.UnpicklingError("unknown storage")
        if not _are_counts((elements,)):
            raise pickle.UnpicklingError("a storage whose length is no number of elements")
        return _Storage(storage_type.dtype, key, elements)


def _rebuild_tensor(
    storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor without storage")
    if type(shape) is not tuple or type(stride) is not tuple or not len(shape) == len(stride) <= _MAX_DIMENSIONS:
        raise pickle.UnpicklingError("a tensor without a shape")
    if not _are_counts((offset, *shape, *stride)):
        raise pickle.UnpicklingError("a tensor whose shape is not of numbers")
    return _Tensor(storage, offset, shape, stride)


def _are_counts(values: tuple[Any, ...]) -> bool:
    return all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _rebuild_parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


_KNOWN: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
}


def _element_bytes(dtype: str) -> int:
    return DTYPE_BITS[dtype] // 8


def _not_a_zip(file: Path) -> ModelFilesError:
    with file.open("rb") as stream:
        start = stream.read(8)
    if start.startswith(b"version "):
        return ModelFilesError(f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
    if start.startswith(b"PK"):
        return ModelFilesError(f"{file} is truncated: the end of its zip archive is missing; download it again")
    if start.startswith(b"\x80"):
        return ModelFilesError(
            f"{file} is in the format of torch before 1.6, or a plain pickle; use the model's safetensors files, or "
            "load and save it with a later torch"
        )
    return ModelFilesError(f"{file} is not a file of torch.save; download it again")
