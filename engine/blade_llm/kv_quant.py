"""How keys and values are kept in fewer bits: the methods, and the bytes that a row of them takes. No torch.

A *row* is one head of one token's key, or of its value. It carries its own scales behind its packed numbers, so
whatever moves, shares or frees cache blocks moves them along and needs to know nothing of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

KVMethod = Literal["int8", "int4", "int8_affine", "int4_affine", "fp8_e4m3", "fp8_e5m2"]
KVCacheQuant = Literal[
    "no_quant",
    "int8",
    "int4",
    "int8_affine",
    "int4_affine",
    "fp8_e5m2",
    "fp8_e4m3",
    "mix_f852i4",
    "mix_f843i4",
    "mix_i8i4",
    "mix_i4i4",
]
"""Values of ``--kv_cache_quant``. ``mix_*``: blocks of two precisions, which there are none of yet."""

METHOD_NUMBERS: Final[dict[KVMethod, int]] = {
    "int8": 1,
    "int4": 2,
    "int8_affine": 3,
    "int4_affine": 4,
    "fp8_e4m3": 5,
    "fp8_e5m2": 6,
}
"""As ``KvMethod`` in kv_rows.h has them; 0: not quantised."""
FP8_MAX: Final = 448.0
"""What the largest element of a group becomes: the largest number of e4m3 (OCP 8-bit floating point, revision 1.0).
e5m2 goes on to 57344, but a scale for that would be below what fp16 holds."""
SCALE_BYTES: Final = 2
"""Scales and zeros are fp16: a bf16 scale would add an error half as large as that of 8 bits."""


@dataclass(frozen=True, slots=True)
class KVQuant:
    """One method, with how many parts of a row have scales of their own."""

    method: KVMethod
    groups: int = 1
    """Each of as many neighbouring elements of a head."""

    @property
    def affine(self) -> bool:
        """Whether a group has a zero beside its scale."""
        return self.method.endswith("affine")

    @property
    def four_bits(self) -> bool:
        """Whether two elements share a byte: element ``i`` is in the low half, ``i + head_dim / 2`` in the high one."""
        return self.method.startswith("int4")

    def problem(self, head_dim: int) -> str | None:
        """Why rows of ``head_dim`` elements cannot be kept this way; None where they can."""
        if head_dim % self.groups:
            return (
                f"kv_cache_quant_sub_heads is {self.groups}, which does not divide a head of {head_dim} elements; "
                "give one that does"
            )
        if self.four_bits and head_dim % 2:
            return f"kv_cache_quant {self.method} needs heads of an even width, not {head_dim}; give one of 8 bits"
        return None

    def row_bytes(self, head_dim: int) -> int:
        """Bytes of a row: its packed elements, the scales of all groups, and, of affine methods, their zeros."""
        packed = head_dim // 2 if self.four_bits else head_dim
        return packed + SCALE_BYTES * self.groups * (2 if self.affine else 1)
