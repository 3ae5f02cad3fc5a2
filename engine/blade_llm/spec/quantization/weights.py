"""The forms in which checkpoints have quantised weights of linear layers: which tensors stand for a ``weight``.

Their names, shapes and types alone, free of torch, for ``blade_llm_check``: :mod:`blade_llm.models.quantized` reads
them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from blade_llm.spec.quantization.stored_tensors import WORD_BITS, Axis, StoredTensor, words_of

SCALE_TYPES: Final = ("F16", "BF16", "F32")
AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs each four bits of a 32-bit integer are, from the lowest bits on."""
_PACKED: Final = ("I32", "U32")
_OUTPUTS: Final = Axis(inputs=False)
_INPUTS: Final = Axis(inputs=True)
_FEW_BITS: Final = 4
"""Up to so many bits a weight is kept as half a byte, else as a byte."""
GROUP_PART: Final = 32
"""Columns of a weight that share a scale in the native kernels, or multiples of them."""
BLOCK_ELEMENTS: Final = 1 << 20
"""Floats of a quantised weight that exist at a time where no kernel multiplies it as it is: few enough to stay in a
core's share of the caches."""
_BLOCK_BYTES: Final = 12
"""Of each of these floats while it is made: itself, its scale where these are spread out, and integers."""


@dataclass(frozen=True, slots=True)
class ActivationForm:
    """How the inputs of a layer are rounded to 8 bits before they are multiplied, token by token."""

    kind: Literal["int8", "fp8"]
    scale: str | None = None
    """The name below the module of the scale of all activations (static); None: each token's largest value makes it."""
    group_size: int | None = None
    """Inputs of a token that share a scale; None: all."""
    most: float | None = None
    """The largest magnitude that a token's scale is made for; larger values become it. None: any. Not with ``scale``
    or ``group_size``."""

    @property
    def label(self) -> str:
        """What it is called in logs."""
        if self.scale is not None:
            return f"{self.kind}, static"
        if self.group_size is not None:
            return f"{self.kind} by {self.group_size} inputs"
        return f"{self.kind} by token" + ("" if self.most is None else f", at most {self.most:g}")


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

    @property
    def label(self) -> str:
        """What it is called in logs."""
        return f"GPTQ, {self.bits} bits"

    def stored(self, module: str, outputs: int, inputs: int) -> Iterator[StoredTensor]:
        """The tensors in place of ``module.weight`` [outputs, inputs]."""
        groups = _groups(inputs, self.group_size)
        ordered = self.has_groups or self.act_order
        words = words_of(self.bits, inputs=True), words_of(self.bits, inputs=False)
        of_groups = None if ordered else _group_axis(self.group_size)  # an input may be of any, as g_idx says
        weight, zeros = (_words(inputs, self.bits), outputs), (groups, _words(outputs, self.bits))
        yield StoredTensor(f"{module}.qweight", weight, _PACKED, axes=(words[0], _OUTPUTS))
        yield StoredTensor(f"{module}.qzeros", zeros, _PACKED, axes=(of_groups, words[1]))
        yield StoredTensor(f"{module}.scales", (groups, outputs), SCALE_TYPES, axes=(of_groups, _OUTPUTS))
        if ordered:
            yield StoredTensor(f"{module}.g_idx", (inputs,), ("I32", "I64"), axes=(_INPUTS,))

    def found_in(self, module: str, names: Collection[str]) -> GptqForm | None:
        """The form as a checkpoint with tensors of these ``names`` has it; None where the weight was left as it is."""
        if f"{module}.qweight" not in names and f"{module}.weight" in names:
            return None
        return replace(self, has_groups=f"{module}.g_idx" in names)

    def packed_bytes(self, outputs: int, inputs: int, whole_inputs: int) -> int:
        """Estimate of what a layer of some outputs and inputs of it takes in memory."""
        form = self.group_size, whole_inputs if self.act_order else inputs
        return _affine_bytes(self.bits, outputs, inputs, *form, zeros=True)


@dataclass(frozen=True, slots=True)
class AwqForm:
    """AWQ (Lin et al., arXiv 2306.00978) in AutoAWQ's ``gemm`` layout: outputs by eights in the order of
    :data:`AWQ_ORDER`, always with zero points."""

    group_size: int | None
    """As in :class:`GptqForm`."""

    bits: ClassVar[int] = 4

    @property
    def label(self) -> str:
        """What it is called in logs."""
        return f"AWQ, {self.bits} bits"

    def stored(self, module: str, outputs: int, inputs: int) -> Iterator[StoredTensor]:
        """As :meth:`GptqForm.stored`."""
        groups, words = _groups(inputs, self.group_size), _words(outputs, self.bits)
        of_words, of_groups = words_of(self.bits, inputs=False), _group_axis(self.group_size)
        yield StoredTensor(f"{module}.qweight", (inputs, words), _PACKED, axes=(_INPUTS, of_words))
        yield StoredTensor(f"{module}.qzeros", (groups, words), _PACKED, axes=(of_groups, of_words))
        yield StoredTensor(f"{module}.scales", (groups, outputs), SCALE_TYPES, axes=(of_groups, _OUTPUTS))

    def found_in(self, module: str, names: Collection[str]) -> AwqForm | None:
        """As :meth:`GptqForm.found_in`."""
        return None if f"{module}.qweight" not in names and f"{module}.weight" in names else self

    def packed_bytes(self, outputs: int, inputs: int, whole_inputs: int) -> int:
        """As :meth:`GptqForm.packed_bytes`."""
        return _affine_bytes(self.bits, outputs, inputs, self.group_size, inputs, zeros=True)


@dataclass(frozen=True, slots=True)
class IntegerForm:
    """compressed-tensors' integers: packed into 32-bit ones (``pack-quantized``), or 8-bit ones (``int-quantized``,
    ``naive-quantized``). Signed, with a zero point around 0.

    Packed integers follow each other without gaps, or, as the package wrote them up to version 0.12, none crosses the
    border of two 32-bit ones: then 3, 5, 6 and 7 bits take more of these.
    """

    bits: int
    packed: bool
    strategy: Literal["tensor", "channel", "group"]
    """What shares a scale: all of the weight, the weights of an output, or so many of them."""
    group_size: int | None
    """Of strategy ``group``."""
    symmetric: bool
    act_order: bool = False
    """Groups are not consecutive inputs (``actorder``)."""
    has_groups: bool = False
    """Whether the checkpoint has ``weight_g_idx``, which says what they are."""
    activations: ActivationForm | None = None
    """How activations are rounded; None: they are not."""
    unrounded: str = ""
    """Which rounding of activations the checkpoint asks for that is not done; empty: none."""

    @property
    def label(self) -> str:
        """What it is called in logs."""
        return f"compressed-tensors, {self.bits} bits"

    def stored(self, module: str, outputs: int, inputs: int) -> Iterator[StoredTensor]:
        """As :meth:`GptqForm.stored`."""
        scales = () if self.strategy == "tensor" else (outputs, _groups(inputs, self.group_size))
        of_groups = None if self.has_groups else _group_axis(self.group_size)
        of_scales = (_OUTPUTS, of_groups) if scales else ()
        # Where it has gaps only the stored shape tells, so that its words are not divided where that matters.
        divided = WORD_BITS % self.bits == 0
        if self.packed:
            older = (outputs, _spaced_words(inputs, self.bits))
            axes = (_OUTPUTS, words_of(self.bits, inputs=True) if divided else None)
            words = (outputs, _words(inputs, self.bits))
            yield StoredTensor(f"{module}.weight_packed", words, _PACKED, older, axes)
            yield StoredTensor(f"{module}.weight_shape", (2,), ("I64", "I32"))
        else:
            yield StoredTensor(f"{module}.weight", (outputs, inputs), ("I8",), axes=(_OUTPUTS, _INPUTS))
        yield StoredTensor(f"{module}.weight_scale", scales, SCALE_TYPES, axes=of_scales)
        if not self.symmetric and self.packed and scales:
            shape, older = (_words(outputs, self.bits), scales[1]), (_spaced_words(outputs, self.bits), scales[1])
            of_zeros = (words_of(self.bits, inputs=False) if divided else None, of_groups)
            yield StoredTensor(f"{module}.weight_zero_point", shape, _PACKED, older, of_zeros)
        elif not self.symmetric:
            yield StoredTensor(f"{module}.weight_zero_point", scales, ("I8",), axes=of_scales)
        if self.has_groups:
            yield StoredTensor(f"{module}.weight_g_idx", (inputs,), ("I32", "I64"), axes=(_INPUTS,))
        yield from _stored_activations(module, self.activations)

    def found_in(self, module: str, names: Collection[str]) -> IntegerForm | None:
        """As :meth:`GptqForm.found_in`."""
        sign = "weight_packed" if self.packed else "weight_scale"
        if f"{module}.{sign}" not in names and f"{module}.weight" in names:
            return None
        return replace(self, has_groups=f"{module}.weight_g_idx" in names)

    def packed_bytes(self, outputs: int, inputs: int, whole_inputs: int) -> int:
        """As :meth:`GptqForm.packed_bytes`."""
        form = self.group_size, whole_inputs if self.act_order else inputs
        return _affine_bytes(self.bits, outputs, inputs, *form, zeros=not self.symmetric)


@dataclass(frozen=True, slots=True)
class Float8Form:
    """8-bit floats (e4m3: Micikevicius et al., arXiv 2209.05433) times a scale."""

    rows: int | None
    """Outputs that share a scale; None: all."""
    columns: int | None
    """Inputs that share a scale; None: all."""
    scale: str = "weight_scale"
    """The scale's name below the module; ``weight_scale_inv`` is multiplied all the same."""
    activations: ActivationForm | None = None
    """As in :class:`IntegerForm`."""
    unrounded: str = ""
    """As in :class:`IntegerForm`."""

    @property
    def label(self) -> str:
        """What it is called in logs."""
        return "FP8"

    def stored(self, module: str, outputs: int, inputs: int) -> Iterator[StoredTensor]:
        """As :meth:`GptqForm.stored`."""
        yield StoredTensor(f"{module}.weight", (outputs, inputs), ("F8_E4M3",), axes=(_OUTPUTS, _INPUTS))
        whole = self.rows is None and self.columns is None
        scales = () if whole else (_groups(outputs, self.rows), _groups(inputs, self.columns))
        axes = () if whole else (_group_axis(self.rows, inputs=False), _group_axis(self.columns))
        yield StoredTensor(f"{module}.{self.scale}", scales, SCALE_TYPES, axes=axes)
        yield from _stored_activations(module, self.activations)

    def found_in(self, module: str, names: Collection[str]) -> Float8Form | None:
        """As :meth:`GptqForm.found_in`; a weight without any scale is a plain one."""
        for scale in (self.scale, "weight_scale", "weight_scale_inv"):
            if f"{module}.{scale}" in names:
                return replace(self, scale=scale, activations=self._activations_in(module, names))
        return None if f"{module}.weight" in names else self

    def _activations_in(self, module: str, names: Collection[str]) -> ActivationForm | None:
        """transformers has another name for a static scale."""
        found = self.activations
        if found is None or found.scale is None or f"{module}.activation_scale" not in names:
            return found
        return replace(found, scale="activation_scale")

    def packed_bytes(self, outputs: int, inputs: int, whole_inputs: int) -> int:
        """As :meth:`GptqForm.packed_bytes`. Kernels on a CPU have a scale for each output, though outputs share it."""
        return outputs * inputs + 4 * outputs * _groups(inputs, self.columns)


WeightForm = GptqForm | AwqForm | IntegerForm | Float8Form
"""What a linear layer's weight is in the checkpoint, where it is not the plain one."""


def dequantized_bytes(tokens: int, outputs: int, inputs: int) -> int:
    """Upper estimate of the working memory that multiplying by a quantised weight takes where it becomes floats for it,
    a block of outputs at a time: the activations and their product with a block in fp32, and the block."""
    rows = min(outputs, max(1, BLOCK_ELEMENTS // inputs))
    return tokens * (inputs + rows) * 4 + rows * inputs * _BLOCK_BYTES


def _group_axis(group_size: int | None, *, inputs: bool = True) -> Axis | None:
    return None if group_size is None else Axis(inputs, group_size)


def _stored_activations(module: str, activations: ActivationForm | None) -> Iterator[StoredTensor]:
    if activations is not None and activations.scale is not None:
        yield StoredTensor(f"{module}.{activations.scale}", (), SCALE_TYPES)


def _groups(inputs: int, group_size: int | None) -> int:
    return 1 if group_size is None else -(-inputs // group_size)


def _words(count: int, bits: int) -> int:
    """32-bit integers that hold ``count`` integers of so many bits; the last of them may be filled in part."""
    return -(-count * bits // WORD_BITS)


def _spaced_words(count: int, bits: int) -> int:
    """As :func:`_words` where none of the integers is in two of them."""
    return -(-count // (WORD_BITS // bits))


def _affine_bytes(bits: int, outputs: int, inputs: int, group_size: int | None, among: int, *, zeros: bool) -> int:
    """``among``: inputs that those of a group are among, more than ``inputs`` for a rank's part with act-order."""
    if group_size is not None and among > inputs:
        shared = math.gcd(group_size, GROUP_PART)
        inputs, group_size = inputs + _groups(among, group_size) * shared // 2, shared  # filled up by half, about
    integers = outputs * math.ceil(inputs * (0.5 if bits <= _FEW_BITS else 1))
    return integers + outputs * _groups(inputs, group_size) * (4 + zeros)
