"""Quantised weights out of a checkpoint, whatever its form."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.quantized.bits import unpack_rows
from blade_llm.models.quantized.slicing import select_rows, slice_columns
from blade_llm.models.weight_source import WeightSource
from blade_llm.spec.quantized import GptqForm
from blade_llm.spec.tensors import TensorPart


def read_quantized(source: WeightSource, part: TensorPart) -> QuantizedWeight:
    """The rows and columns of a quantised weight that ``part`` wants.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for tensors that contradict each other.
    """
    assert part.form is not None
    weight = _read_gptq(source, part.module, part.form, part.shape)
    return slice_columns(select_rows(weight, part.rows), part.columns, part.module)


def dequantized(source: WeightSource, part: TensorPart) -> Tensor:
    """What ``part`` wants of a quantised weight as fp32, [out, in]."""
    return read_quantized(source, part).dequantize()


def _read_gptq(source: WeightSource, module: str, form: GptqForm, shape: tuple[int, ...]) -> QuantizedWeight:
    inputs = shape[1]
    scales = source.stored(f"{module}.scales").t().contiguous()
    # Zero points are stored less one in the first version, modulo 2^bits: AutoGPTQ reads them so, too.
    zeros = unpack_rows(source.stored(f"{module}.qzeros").t().contiguous(), form.bits)
    zeros = (zeros + form.zero_offset) & ((1 << form.bits) - 1)
    integers = unpack_rows(source.stored(f"{module}.qweight"), form.bits).t().contiguous()
    group_size = form.group_size or inputs
    order = None
    if form.has_groups and form.group_size is not None:
        order = order_of(source.stored(f"{module}.g_idx"), group_size, f"{module}.g_idx")
        if order is not None:
            integers = integers[:, order]
    symmetric = bool((zeros == 1 << (form.bits - 1)).all())
    return QuantizedWeight(form.bits, integers, scales, None if symmetric else zeros, group_size, order)


def order_of(groups: Tensor, group_size: int, name: str) -> Tensor | None:
    """The order in which inputs form consecutive groups, [in] int64; None where they do already.

    ``groups``: [in] integers, which group each input belongs to. Raises
    :class:`~blade_llm.models.errors.ModelFilesError` where these are not groups of ``group_size``.
    """
    expected = torch.arange(len(groups), device=groups.device) // group_size
    if torch.equal(groups.long(), expected):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups.long()[order], expected):
        raise ModelFilesError(f"{name} does not divide {len(groups)} inputs into groups of {group_size}")
    return order
