"""Integers with scales out of GPTQ, AWQ and compressed-tensors checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.quantized.bits import WORD_BITS, unpack_rows
from blade_llm.models.weight_source import WeightSource
from blade_llm.spec.quantized import AWQ_ORDER, AwqForm, GptqForm, IntegerForm


def read_gptq(source: WeightSource, module: str, form: GptqForm, inputs: int) -> QuantizedWeight:
    """The whole weight. Raises :class:`~blade_llm.models.errors.ModelFilesError` for groups of other sizes."""
    scales = source.stored(f"{module}.scales").t().contiguous()
    # Zero points are stored less one in the first version, modulo 2^bits: AutoGPTQ reads them so, too.
    zeros = unpack_rows(source.stored(f"{module}.qzeros").t().contiguous(), form.bits, len(scales))
    zeros = (zeros + form.zero_offset) & ((1 << form.bits) - 1)
    integers = unpack_rows(source.stored(f"{module}.qweight"), form.bits, inputs).t().contiguous()
    order = None
    if form.has_groups and form.group_size is not None:
        order = order_of(source.stored(f"{module}.g_idx"), form.group_size, f"{module}.g_idx")
    return _weight(form.bits, integers, scales, zeros, form.group_size or inputs, order)


def read_awq(source: WeightSource, module: str, form: AwqForm, inputs: int) -> QuantizedWeight:
    """The whole weight."""
    scales = source.stored(f"{module}.scales").t().contiguous()
    zeros = _unpack_awq(source.stored(f"{module}.qzeros"), len(scales))
    integers = _unpack_awq(source.stored(f"{module}.qweight"), len(scales))
    return _weight(form.bits, integers, scales, zeros, form.group_size or inputs, None)


def read_integers(source: WeightSource, module: str, form: IntegerForm, outputs: int, inputs: int) -> QuantizedWeight:
    """The whole weight. Raises :class:`~blade_llm.models.errors.ModelFilesError` for groups of other sizes, and for a
    stored shape that is another."""
    middle, spaced = 1 << (form.bits - 1), False
    if form.packed:
        shape = source.stored(f"{module}.weight_shape").tolist()
        if shape != [outputs, inputs]:
            raise ModelFilesError(f"{module}.weight_shape is {shape}, config.json asks for {[outputs, inputs]}")
        words = source.stored(f"{module}.weight_packed").t().contiguous()
        spaced = len(words) * WORD_BITS >= inputs * form.bits + WORD_BITS  # a whole word more than without gaps
        integers = unpack_rows(words, form.bits, inputs, spaced=spaced).t().contiguous()
    else:
        integers = _unsigned(source.stored(f"{module}.weight"), middle)
    scales = source.stored(f"{module}.weight_scale").clone()
    zeros: Tensor | None = None
    if not form.symmetric:
        stored = source.stored(f"{module}.weight_zero_point")
        packed = form.packed and form.strategy != "tensor"
        zeros = unpack_rows(stored, form.bits, outputs, spaced=spaced) if packed else _unsigned(stored, middle)
    if form.strategy == "tensor":
        scales = scales.reshape(1, 1).expand(outputs, 1).contiguous()
        zeros = None if zeros is None else zeros.reshape(1, 1).expand(outputs, 1).contiguous()
    order = None
    if form.has_groups and form.group_size is not None:
        order = order_of(source.stored(f"{module}.weight_g_idx"), form.group_size, f"{module}.weight_g_idx")
    return _weight(form.bits, integers, scales, zeros, form.group_size or inputs, order)


def order_of(groups: Tensor, group_size: int, name: str) -> Tensor | None:
    """The order in which inputs form consecutive groups, [in] int64; None where they do already.

    ``groups``: [in] integers, which group each input belongs to. Raises
    :class:`~blade_llm.models.errors.ModelFilesError` where these are not groups of ``group_size``.
    """
    groups = groups.long()
    expected = torch.arange(len(groups), device=groups.device) // group_size
    if torch.equal(groups, expected) or bool((groups == -1).all()):  # -1: nothing was written there
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], expected):
        raise ModelFilesError(f"{name} does not divide {len(groups)} inputs into groups of {group_size}")
    return order


def _weight(
    bits: int, integers: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int, order: Tensor | None
) -> QuantizedWeight:
    if order is not None:
        integers = integers[:, order]
    if zeros is not None and bool((zeros == 1 << (bits - 1)).all()):
        zeros = None
    return QuantizedWeight(bits, integers, scales, zeros, group_size, order)


def _unpack_awq(words: Tensor, outputs: int) -> Tensor:
    """[outputs, rows] uint8 of ``words`` ([rows, outputs / 8] int32)."""
    fours = unpack_rows(words.t().contiguous(), AwqForm.bits).view(-1, len(AWQ_ORDER), len(words))
    ordered = torch.empty_like(fours)
    ordered[:, list(AWQ_ORDER)] = fours
    return ordered.flatten(0, 1)[:outputs]


def _unsigned(signed: Tensor, middle: int) -> Tensor:
    return (signed.to(torch.int16) + middle).to(torch.uint8)
