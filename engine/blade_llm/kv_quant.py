"""How keys and values are kept in fewer bits: the methods, and the bytes that a row of them takes. No torch.

A *row* is one head of one token's key, or of its value. It carries its own scales behind its packed numbers, so
whatever moves, shares or frees cache blocks moves them along and needs to know nothing of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast

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
"""Values of ``--kv_cache_quant``. ``mix_*``: a method of keys, then one of values."""

METHOD_NUMBERS: Final[dict[KVMethod, int]] = {
    "int8": 1,
    "int4": 2,
    "int8_affine": 3,
    "int4_affine": 4,
    "fp8_e4m3": 5,
    "fp8_e5m2": 6,
}
"""As ``KvMethod`` in kv_rows.h has them; 0: not quantised."""
MIXED: Final[dict[KVCacheQuant, tuple[KVMethod, KVMethod]]] = {
    "mix_f852i4": ("fp8_e5m2", "int4"),
    "mix_f843i4": ("fp8_e4m3", "int4"),
    "mix_i8i4": ("int8", "int4"),
    "mix_i4i4": ("int4_affine", "int4"),
}
"""Methods of keys and of values. Scores go through an exponential and errors of values are averaged, so keys need the
more bits; keys are seldom centred at zero, values nearly are (KIVI, arXiv 2402.02750). docs/decisions/0033 has why it
is not first and recent tokens that get more bits."""
FP8_MAX: Final = 448.0
"""What the largest element of a group becomes: the largest number of e4m3 (OCP 8-bit floating point, revision 1.0).
e5m2 goes on to 57344, but a scale for that would be below what fp16 holds."""
SCALE_BYTES: Final = 2
"""Scales and zeros are fp16: a bf16 scale would add an error half as large as that of 8 bits."""


@dataclass(frozen=True, slots=True)
class KVQuant:
    """How rows are packed: of keys, and of values where :attr:`values` says nothing else."""

    method: KVMethod
    groups: int = 1
    """Parts of a row with scales of their own, each of as many neighbouring elements of a head."""
    value_method: KVMethod | None = None
    """Of values where they are packed otherwise than keys, in as many groups."""

    @staticmethod
    def of(requested: KVCacheQuant, groups: int = 1) -> KVQuant:
        """What a value of ``--kv_cache_quant`` other than ``no_quant`` stands for."""
        if requested == "no_quant":
            raise ValueError("no_quant packs no rows")
        if (mixed := MIXED.get(requested)) is not None:
            return KVQuant(mixed[0], groups, mixed[1])
        return KVQuant(cast(KVMethod, requested), groups)

    @property
    def values(self) -> KVQuant:
        """How rows of values are packed; the same where all are packed alike."""
        return self if self.value_method is None else KVQuant(self.value_method, self.groups)

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
        if head_dim % 2 and (narrow := next((each for each in (self, self.values) if each.four_bits), None)):
            return f"kv_cache_quant {narrow.method} needs heads of an even width, not {head_dim}; give one of 8 bits"
        return None

    def row_bytes(self, head_dim: int) -> int:
        """Bytes of a row of keys: its packed elements, all groups' scales, and, of affine methods, their zeros."""
        packed = head_dim // 2 if self.four_bits else head_dim
        return packed + SCALE_BYTES * self.groups * (2 if self.affine else 1)
