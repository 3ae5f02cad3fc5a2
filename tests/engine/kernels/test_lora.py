"""What adapters add: the kernel in C++ and the torch implementation against one product in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blade_llm.kernels import native
from blade_llm.kernels.lora import AdapterBatch, Factors, FactorTable, Slice, add_lora
from blade_llm.kernels.lora.native import use_native

INPUTS, OUTPUTS = 83, (70, 19, 530)


def factors_of(ranks: tuple[int, ...], dtype: torch.dtype, seed: int, outputs: tuple[int, ...] = OUTPUTS) -> Factors:
    """Slices of the given ranks one after another; rank 0: none there."""
    generator = torch.Generator().manual_seed(seed)
    slices, first, rank = [], 0, 0
    for size, count in zip(ranks, outputs, strict=True):
        if size:
            b = torch.randn(size, count, generator=generator) / size**0.5
            slices.append(Slice(first, rank, b.to(dtype)))
        first, rank = first + count, rank + size
    a = torch.randn(rank, INPUTS, generator=generator).to(dtype) / INPUTS**0.5
    return Factors(a, tuple(slices), sum(outputs))


def batch_of(slots: list[int]) -> AdapterBatch:
    rows, used, starts = AdapterBatch.sort(np.array(slots, dtype=np.int64))
    return AdapterBatch(torch.from_numpy(rows), used, starts)


def exact(x: torch.Tensor, y: torch.Tensor, table: FactorTable, slots: list[int]) -> torch.Tensor:
    result = y.double().clone()
    for token, slot in enumerate(slots):
        factors = table.factors[slot]
        if factors is None:
            continue
        shrunk = factors.a.double() @ x[token].double()
        for each in factors.slices:
            rank, count = each.b.shape
            added = shrunk[each.first_rank : each.first_rank + rank] @ each.b.double()
            result[token, each.first_output : each.first_output + count] += added
    return result


@pytest.mark.parametrize("in_cpp", [True, False])
@pytest.mark.parametrize(
    ("of_x", "of_weights"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float16),
    ],
)
def test_tokens_of_many_adapters(in_cpp: bool, of_x: torch.dtype, of_weights: torch.dtype) -> None:
    if in_cpp and native.library() is None:
        pytest.skip("no C++ compiler")
    table = FactorTable("somewhere", 7)
    for slot, ranks in {1: (1, 1, 1), 2: (16, 16, 16), 3: (8, 0, 64), 4: (0, 3, 0), 5: (256, 0, 9)}.items():
        table.put(slot, factors_of(ranks, of_weights, slot))
    if in_cpp:
        use_native(table)
    slots = [3, 0, 1, 5, 3, 2, 6, 0, 4, 2, 1, 5]  # slot 6 has nothing for this layer
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(len(slots), INPUTS + 5, generator=generator).to(of_x)
    x, y = wide[:, :INPUTS], torch.randn(len(slots), sum(OUTPUTS), generator=generator).to(of_x)
    expected = exact(x, y, table, slots)
    add_lora(x, y, table, batch_of(slots))
    exactly = of_x == of_weights == torch.float32
    torch.testing.assert_close(y.double(), expected, atol=1e-4 if exactly else 6e-2, rtol=0 if exactly else 2e-2)


def test_tokens_without_an_adapter_keep_their_bits() -> None:
    table = FactorTable("somewhere", 2)
    table.put(1, factors_of((4, 4, 4), torch.float32, 1))
    if native.library() is not None:
        use_native(table)
    x, y = torch.randn(5, INPUTS), torch.randn(5, sum(OUTPUTS))
    before = y.clone()
    add_lora(x, y, table, batch_of([0, 1, 0, 1, 0]))
    assert torch.equal(y[[0, 2, 4]], before[[0, 2, 4]])
    assert not torch.equal(y[[1, 3]], before[[1, 3]])


def test_a_slot_that_is_given_to_another() -> None:
    """Batches read what is in the slot when they are computed."""
    table = FactorTable("somewhere", 2)
    if native.library() is not None:
        use_native(table)
    batch = batch_of([1, 1, 1])
    x = torch.randn(3, INPUTS)
    for seed in (1, 2):
        table.put(1, factors_of((4, 0, 8), torch.float32, seed))
        y = torch.zeros(3, sum(OUTPUTS))
        add_lora(x, y, table, batch)
        torch.testing.assert_close(y.double(), exact(x, torch.zeros_like(y), table, [1, 1, 1]), atol=1e-4, rtol=0)
    table.put(1, None)
    y = torch.ones(3, sum(OUTPUTS))
    add_lora(x, y, table, batch)
    assert torch.equal(y, torch.ones_like(y))


def test_many_tokens_of_one_adapter() -> None:
    """More than the kernel in C++ takes, and as many; all tokens, and all but one."""
    table = FactorTable("somewhere", 2)
    table.put(1, factors_of((16, 16, 16), torch.float32, 1))
    if native.library() is not None:
        use_native(table)
    for slots in ([1] * 300, [1] * 150 + [0] + [1] * 149, [1] * 150 + [0] + [1] * 49):
        x, y = torch.randn(len(slots), INPUTS), torch.randn(len(slots), sum(OUTPUTS))
        expected = exact(x, y, table, slots)
        add_lora(x, y, table, batch_of(slots))
        torch.testing.assert_close(y.double(), expected, atol=1e-4, rtol=0)
