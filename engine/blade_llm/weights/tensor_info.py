"""One tensor in a file of weights, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DTYPE_BITS: Final = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor in a file: its bytes are ``file[begin:end]`` (absolute offsets), row-major, little-endian."""

    name: str
    dtype: str
    """The safetensors name, e.g. ``BF16``."""
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return self.end - self.begin
