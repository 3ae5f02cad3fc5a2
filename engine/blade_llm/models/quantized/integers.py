"""Integers with scales out of GPTQ, AWQ and compressed-tensors checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.quantized.bits import unpack_rows
from blade_llm.models.quantized.slicing import of_consecutive_groups, of_groups
from blade_llm.models.quantized.stored_part import StoredPart
from blade_llm.spec.quantization.weights import AWQ_ORDER, AwqForm, GptqForm, IntegerForm


def read_gptq(stored: StoredPart, form: GptqForm) -> QuantizedWeight:
    """The part of the weight. Raises :class:`~blade_llm.models.errors.ModelFilesError` for groups of other sizes."""
    scales = stored.read("scales").t().contiguous()
    # Zero points are stored less one in the first version, modulo 2^bits: AutoGPTQ reads them so, too.
    zeros = stored.unpack("qzeros", stored.read("qzeros").t().contiguous(), form.bits, of_inputs=False)
    zeros = (zeros + form.zero_offset) & ((1 << form.bits) - 1)
    integers = stored.unpack("qweight", stored.read("qweight"), form.bits, of_inputs=True).t().contiguous()
    groups = "g_idx" if form.has_groups and form.group_size is not None else None
    return _weight(stored, form.bits, integers, scales, zeros, form.group_size, groups)


def read_awq(stored: StoredPart, form: AwqForm) -> QuantizedWeight:
    """The part of the weight."""
    scales = stored.read("scales").t().contiguous()

    def unpacked(suffix: str) -> Tensor:
        words = stored.read(suffix).t().contiguous()
        return stored.unpack(suffix, words, form.bits, of_inputs=False, unpacked=_unpack_awq).contiguous()

    return _weight(stored, form.bits, unpacked("qweight"), scales, unpacked("qzeros"), form.group_size, None)


def read_integers(stored: StoredPart, form: IntegerForm) -> QuantizedWeight:
    """The part of the weight. Raises :class:`~blade_llm.models.errors.ModelFilesError` for groups of other sizes, and
    for a stored shape that is another."""
    middle, outputs = 1 << (form.bits - 1), len(stored.outputs)
    if form.packed:
        shape = stored.read("weight_shape").tolist()
        if shape != [stored.whole_outputs, stored.whole_inputs]:
            raise ModelFilesError(
                f"{stored.name('weight_shape')} is {shape}, config.json asks for "
                f"{[stored.whole_outputs, stored.whole_inputs]}"
            )
        words = stored.read("weight_packed").t().contiguous()
        integers = stored.unpack("weight_packed", words, form.bits, of_inputs=True).t().contiguous()
    else:
        integers = _unsigned(stored.read("weight"), middle)
    scales = stored.read("weight_scale").clone()
    zeros: Tensor | None = None
    if not form.symmetric:
        found = stored.read("weight_zero_point")
        if form.packed and form.strategy != "tensor":
            zeros = stored.unpack("weight_zero_point", found, form.bits, of_inputs=False)
        else:
            zeros = _unsigned(found, middle)
    if form.strategy == "tensor":
        scales = scales.reshape(1, 1).expand(outputs, 1).contiguous()
        zeros = None if zeros is None else zeros.reshape(1, 1).expand(outputs, 1).contiguous()
    groups = "weight_g_idx" if form.has_groups and form.group_size is not None else None
    return _weight(stored, form.bits, integers, scales, zeros, form.group_size, groups)


def _weight(
    stored: StoredPart,
    bits: int,
    integers: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    group_size: int | None,
    groups: str | None,
) -> QuantizedWeight:
    """``groups``: which tensor says what group each input belongs to; there are scales of all groups then."""
    if zeros is not None and bool((zeros == 1 << (bits - 1)).all()):
        zeros = None
    inputs = stored.inputs
    if group_size is None or group_size >= stored.whole_inputs:
        return QuantizedWeight(bits, integers, scales, zeros, len(inputs))
    if groups is None:
        return of_consecutive_groups(bits, integers, scales, zeros, group_size, inputs)
    group_of = _groups_of(stored, groups, group_size, scales.shape[1])
    if group_of is not None:
        return of_groups(bits, integers, scales, zeros, group_size, group_of)
    first, last = inputs.start // group_size, -(-inputs.stop // group_size)
    own = None if zeros is None else zeros[:, first:last]
    return of_consecutive_groups(bits, integers, scales[:, first:last], own, group_size, inputs)


def _groups_of(stored: StoredPart, suffix: str, group_size: int, count: int) -> Tensor | None:
    """The group of each input, [in] int64; None where these are ``group_size`` consecutive ones.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` where they are not ``count`` groups of ``group_size``.
    """
    groups, inputs = stored.read(suffix).long(), stored.inputs
    consecutive = torch.arange(inputs.start, inputs.stop, device=groups.device) // group_size
    if torch.equal(groups, consecutive) or bool((groups == -1).all()):  # -1: nothing was written there
        return None
    sizes = torch.full((count,), group_size, device=groups.device)
    sizes[-1] = stored.whole_inputs - group_size * (count - 1)
    valid = int(groups.min()) >= 0 and int(groups.max()) < count
    found = groups.bincount(minlength=count) if valid else sizes + 1
    # What other ranks have is not known here.
    if bool((found > sizes).any() if len(inputs) < stored.whole_inputs else (found != sizes).any()):
        raise ModelFilesError(
            f"{stored.name(suffix)} does not divide {stored.whole_inputs} inputs into groups of {group_size}"
        )
    return groups


def _unpack_awq(words: Tensor, bits: int, *, spaced: bool) -> Tensor:
    """[outputs, rows] uint8 of ``words`` ([outputs / 8, rows] int32)."""
    fours = unpack_rows(words, bits, spaced=spaced).view(-1, len(AWQ_ORDER), words.shape[1])
    ordered = torch.empty_like(fours)
    ordered[:, list(AWQ_ORDER)] = fours
    return ordered.flatten(0, 1)


def _unsigned(signed: Tensor, middle: int) -> Tensor:
    return (signed.to(torch.int16) + middle).to(torch.uint8)
