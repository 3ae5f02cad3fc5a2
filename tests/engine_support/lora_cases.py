"""Random adapters of one linear layer, and what they add, computed in fp64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from blade_llm.kernels.lora import Factors, Slice
from blade_llm.kernels.lora.device import DeviceTable
from blade_llm.lora.device_slots import DeviceSlots
from blade_llm.lora.packing import pack
from blade_llm.spec.adapter_layout import SlotLayout
from blade_llm.spec.tensors import LinearMap, LinearPart

PLACE = "layers.0.attention.qkv"


def random_factors(ranks: Sequence[int], outputs: Sequence[int], inputs: int, dtype: torch.dtype, seed: int) -> Factors:
    """Parts of the given ranks one after another; rank 0: none there."""
    generator = torch.Generator().manual_seed(seed)
    slices, first, rank = [], 0, 0
    for size, count in zip(ranks, outputs, strict=True):
        if size:
            b = torch.randn(size, count, generator=generator) / size**0.5
            slices.append(Slice(first, rank, b.to(dtype)))
        first, rank = first + count, rank + size
    a = (torch.randn(rank, inputs, generator=generator) / inputs**0.5).to(dtype)
    return Factors(a, tuple(slices), sum(outputs))


def slots_with(
    adapters: Mapping[int, Factors],
    outputs: Sequence[int],
    inputs: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    buffers: int,
    max_rank: int,
    deterministic: bool = False,
) -> tuple[DeviceSlots, DeviceTable]:
    """Buffers of a model with one layer, where ``adapters`` are in theirs; what they do not fill is NaN."""
    linear = LinearMap(tuple(LinearPart(f"part{i}", count, inputs) for i, count in enumerate(outputs)))
    layout = SlotLayout({PLACE: linear}, max_rank)
    slots = DeviceSlots(layout, buffers, dtype, device, deterministic=deterministic)
    slots._weights.fill_(float("nan"))
    for buffer, factors in adapters.items():
        slots.write(buffer, pack(layout, {PLACE: factors}, dtype, pinned=False))
    return slots, slots.table(PLACE)


def exact(x: Tensor, y: Tensor, adapters: Mapping[int, Factors], buffers: Sequence[int]) -> Tensor:
    """What ``y`` is afterwards, in fp64: token ``i`` has the adapter ``buffers[i]``."""
    result = y.double().clone()
    for token, buffer in enumerate(buffers):
        factors = adapters.get(buffer)
        if factors is None:
            continue
        shrunk = factors.a.double() @ x[token].double()
        for each in factors.slices:
            rank, count = each.b.shape
            added = shrunk[each.first_rank : each.first_rank + rank] @ each.b.double()
            result[token, each.first_output : each.first_output + count] += added
    return result
