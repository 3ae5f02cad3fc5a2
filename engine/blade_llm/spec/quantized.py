"""The forms in which checkpoints have quantised weights of linear layers: which tensors stand for a ``weight``.

Only their names, shapes and types, free of torch, for ``blade_llm_check``; :mod:`blade_llm.models.quantized` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

SCALE_TYPES: Final = ("F16", "BF16", "F32")
_PACKED: Final = ("I32", "U32")
_WORD: Final = 32
"""Bits of the integers that hold packed ones."""
_FEW_BITS: Final = 4
"""Up to so many bits a weight is kept as half a byte, else as a byte."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that a checkpoint must have."""

    name: str
    shape: tuple[int, ...]
    types: tuple[str, ...] = ()
    """Safetensors' names of the types that it may have; none: those of plain weights."""


@dataclass(frozen=True, slots=True)
class GptqForm:
    """GPTQ (Frantar et al., arXiv 2210.17323) as AutoGPTQ and GPTQModel write it: ``qweight``, ``qzeros``, ``scales``,
    and ``g_idx`` that says to which group an input belongs."""

    bits: int
    group_size: int | None
    """Inputs that share a scale; None: all of them."""
    act_order: bool
    """Groups are not consecutive inputs (``desc_act``)."""
    zero_offset: int
    """What is added to stored zero points: 1 in the first version of the format, 0 in the second."""
    has_groups: bool = False
    """Whether the checkpoint has ``g_idx``."""

    def stored(self, module: str, outputs: int, inputs: int) -> Iterator[StoredTensor]:
        """The tensors in place of ``module.weight`` [outputs, inputs]. Raises ``ValueError`` for impossible sizes."""
        groups = _groups(inputs, self.group_size)
        yield StoredTensor(f"{module}.qweight", (_words(module, inputs, self.bits), outputs), _PACKED)
        yield StoredTensor(f"{module}.qzeros", (groups, _words(module, outputs, self.bits)), _PACKED)
        yield StoredTensor(f"{module}.scales", (groups, outputs), SCALE_TYPES)
        if self.has_groups or self.act_order:
            yield StoredTensor(f"{module}.g_idx", (inputs,), ("I32", "I64"))

    def found_in(self, module: str, names: Collection[str]) -> GptqForm | None:
        """The form as a checkpoint with tensors of these ``names`` has it; None where the weight was left as it is."""
        if f"{module}.qweight" not in names and f"{module}.weight" in names:
            return None
        return replace(self, has_groups=f"{module}.g_idx" in names)

    def packed_bytes(self, outputs: int, inputs: int) -> int:
        """Estimate of what a layer of it takes in memory."""
        return _affine_bytes(self.bits, outputs, inputs, self.group_size, zeros=True)


WeightForm = GptqForm
"""What a linear layer's weight is in the checkpoint, where it is not the plain one."""


def _groups(inputs: int, group_size: int | None) -> int:
    return 1 if group_size is None else -(-inputs // group_size)


def _words(module: str, count: int, bits: int) -> int:
    """32-bit integers that ``count`` integers of so many bits fill."""
    if count * bits % _WORD:
        raise ValueError(f"{module}: {count} integers of {bits} bits do not fill whole 32-bit integers")
    return count * bits // _WORD


def _affine_bytes(bits: int, outputs: int, inputs: int, group_size: int | None, *, zeros: bool) -> int:
    integers = outputs * math.ceil(inputs * (0.5 if bits <= _FEW_BITS else 1))
    return integers + outputs * _groups(inputs, group_size) * (4 + zeros)
