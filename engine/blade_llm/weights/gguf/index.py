"""The tensors of a GGUF file as a small JSON file beside a link to it, so that later readers need no parsing of a
hundred thousand tokens, and no ``gguf`` package to judge shapes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from blade_llm.models.errors import ModelFilesError
from blade_llm.spec.slices import Slice
from blade_llm.weights.tensor_info import TensorInfo

if TYPE_CHECKING:  # a tenth of a second, in a server that has no other use for it
    import numpy as np

MODEL_NAME: Final = "model.gguf"
INDEX_NAME: Final = "model.gguf.json"
PLAIN: Final = ("F32", "F16", "BF16")
"""Types that are stored as numbers, not as blocks with scales."""
TYPES: Final = (*PLAIN, "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
MISSING_PACKAGE: Final = "GGUF files need the gguf package: pip install 'bladellm[gguf]'"


class Entry(msgspec.Struct, frozen=True):
    """One tensor by its Hugging Face name."""

    shape: tuple[int, ...]
    type: str
    """One of :data:`TYPES`."""
    begin: int
    """First byte in the file."""
    nbytes: int
    permuted_heads: int = 0
    """See :func:`blade_llm.weights.gguf.names.permuted_heads`."""
    file: str = MODEL_NAME
    """Which of the files of a model in parts."""


def file_name(part: int) -> str:
    """What the link to a part is called, counted from 0."""
    return f"model-{part:05d}.gguf" if part else MODEL_NAME


def linked_files(folder: Path) -> list[Path]:
    """The links to all parts in the folder made for a GGUF file. Raises :class:`ModelFilesError`."""
    names = {entry.file for entry in _read(folder / MODEL_NAME).values()} | {MODEL_NAME}
    return [folder / name for name in sorted(names, key=lambda name: (name != MODEL_NAME, name))]


def read_gguf_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of ``file``, whose index lies beside it. Raises :class:`ModelFilesError`."""
    size = file.stat().st_size
    tensors = {}
    for name, entry in _read(file).items():
        if entry.file != file.name:
            continue
        if entry.begin + entry.nbytes > size:
            raise ModelFilesError(
                f"{file.resolve()} is truncated: tensor {name!r} ends at byte {entry.begin + entry.nbytes}, the file "
                f"has {size}; download it again"
            )
        tensors[name] = TensorInfo(name, entry.type, entry.shape, file, entry.begin, entry.begin + entry.nbytes)
    return tensors


class GgufFile:
    """Reads tensors, dequantised to fp32 where they are stored in blocks."""

    def __init__(self, file: Path) -> None:
        try:
            import gguf.quants
            import numpy as np
        except ImportError:
            raise ModelFilesError(f"{file}: {MISSING_PACKAGE}") from None
        self._gguf: Any = gguf
        self._index = _read(file)
        self._data = np.memmap(file, mode="r")

    def array(self, name: str, block: Slice | None = None) -> np.ndarray:
        """The tensor, or a block of it, in fp32, or in fp16 where it is stored so. Of a block of rows no others are
        read, except of heads whose rows were reordered. Raises ``ValueError`` for data of another size."""
        import numpy as np

        entry, block = self._index[name], block or Slice()
        stored = self._data[entry.begin : entry.begin + entry.nbytes].reshape(*entry.shape[:-1], -1)
        shape = entry.shape if block.index is None else entry.shape[1:]
        rows = range(shape[0]) if block.rows is None else block.rows
        height = shape[0] // (entry.permuted_heads or shape[0])
        first, last = rows.start // height * height, -(-rows.stop // height) * height
        if block.index is not None:
            stored = stored[block.index]
        found = (
            self._numbers(stored, entry)[first:last] if len(shape) == 1 else self._numbers(stored[first:last], entry)
        )
        if entry.permuted_heads:
            found = found.reshape(-1, height // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(found.shape)
        found = found[rows.start - first : rows.stop - first]
        if block.columns is not None:
            found = found[:, block.columns.start : block.columns.stop]
        return np.array(found)  # a copy: the file stays mapped for reading alone

    def _numbers(self, stored: np.ndarray, entry: Entry) -> np.ndarray:
        """The numbers in rows of bytes."""
        import numpy as np

        if entry.type == "F16":
            found = stored.view(np.float16)
        elif entry.type == "F32":
            found = stored.view(np.float32)
        else:
            found = self._gguf.quants.dequantize(stored, self._gguf.GGMLQuantizationType[entry.type])
        return found.reshape(*stored.shape[:-1], entry.shape[-1])


def _read(file: Path) -> dict[str, Entry]:
    try:
        return msgspec.json.decode(file.with_name(INDEX_NAME).read_bytes(), type=dict[str, Entry])
    except (OSError, msgspec.DecodeError) as error:
        raise ModelFilesError(f"{file.with_name(INDEX_NAME)}: {error}; delete its folder, it is made anew") from None
