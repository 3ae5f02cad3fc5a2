"""What adapters add, in Triton, against one product in fp64."""

from __future__ import annotations

import random

import pytest
import torch
from engine_support.triton_interpreter import DEVICE

# isort: split
from engine_support.lora_cases import PLACE, exact, random_factors, slots_with
from torch import Tensor

from blade_llm.kernels.lora import AdapterBatch, Factors, FactorTable
from blade_llm.kernels.lora import torch as reference
from blade_llm.kernels.lora import triton as kernels
from blade_llm.kernels.lora.device import DeviceTable
from blade_llm.kernels.lora.triton_forms import PREFILL_TOKENS, form_of, most_splits, programs_of, rows_of, tiles_of
from blade_llm.lora.device_slots import DeviceSlots
from blade_llm.lora.packing import pack

INPUTS, OUTPUTS = 83, (70, 19, 130)
TYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float16),
]


def added(x: Tensor, y: Tensor, table: DeviceTable, buffers: list[int]) -> Tensor:
    ids = torch.tensor(buffers, dtype=torch.int32, device=DEVICE)
    groups = kernels.group_tokens(ids, len(table.entries), table.deterministic)
    result = y.clone().to(DEVICE)
    kernels.add_lora(x.to(DEVICE), result, table, groups)
    return result.cpu()


def inputs(
    tokens: int, dtype: torch.dtype, outputs: tuple[int, ...] = OUTPUTS, width: int = INPUTS
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, width, generator=generator).to(dtype)
    return x, torch.randn(tokens, sum(outputs), generator=generator).to(dtype)


def check(found: Tensor, expected: Tensor, dtype: torch.dtype, of_weights: torch.dtype) -> None:
    exactly = dtype == of_weights == torch.float32
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=1e-4 if exactly else 6e-2, rtol=0 if exactly else 2e-2)


@pytest.mark.parametrize(("of_x", "of_weights"), TYPES)
def test_tokens_of_many_adapters(of_x: torch.dtype, of_weights: torch.dtype) -> None:
    """Parts without an adapter, adapters without this layer, tokens without any; beside NaN in what is not theirs."""
    ranks = {1: (1, 1, 1), 2: (16, 16, 16), 3: (8, 0, 64), 4: (0, 3, 0), 5: (256, 0, 9)}
    adapters = {buffer: random_factors(each, OUTPUTS, INPUTS, of_weights, buffer) for buffer, each in ranks.items()}
    _, table = slots_with(adapters, OUTPUTS, INPUTS, of_weights, DEVICE, buffers=7, max_rank=256)
    buffers = [3, 0, 1, 5, 3, 2, 6, 0, 4, 2, 1, 5]
    x, y = inputs(len(buffers), of_x)
    found = added(x, y, table, buffers)
    check(found, exact(x, y, adapters, buffers), of_x, of_weights)
    without = [token for token, buffer in enumerate(buffers) if buffer in (0, 6)]
    assert torch.equal(found[without], y[without])


@pytest.mark.parametrize("rank", [1, 2, 8, 16, 17, 32, 33, 64, 65, 128, 256])
def test_each_rank(rank: int) -> None:
    adapters = {1: random_factors((rank,), (48,), 64, torch.bfloat16, rank)}
    _, table = slots_with(adapters, (48,), 64, torch.bfloat16, DEVICE, buffers=1, max_rank=256)
    x, y = inputs(3, torch.bfloat16, (48,), 64)
    check(added(x, y, table, [1, 0, 1]), exact(x, y, adapters, [1, 0, 1]), torch.bfloat16, torch.bfloat16)


@pytest.mark.parametrize("count", [1, 3, 64])
def test_one_to_64_adapters(count: int) -> None:
    """Each rank several times, some adapters without tokens, some with more than a tile."""
    choose = random.Random(count)
    adapters = {
        buffer: random_factors((choose.choice([1, 4, 16, 40]),), (33,), 48, torch.float32, buffer)
        for buffer in range(1, count + 1)
    }
    _, table = slots_with(adapters, (33,), 48, torch.float32, DEVICE, buffers=count, max_rank=40)
    buffers = [choose.randrange(0, count + 1) for _ in range(90)] + [1] * 20
    choose.shuffle(buffers)
    x, y = inputs(len(buffers), torch.float32, (33,), 48)
    check(added(x, y, table, buffers), exact(x, y, adapters, buffers), torch.float32, torch.float32)


def test_the_reference_says_the_same() -> None:
    adapters = {b: random_factors((4, 0, 16), OUTPUTS, INPUTS, torch.bfloat16, b) for b in (1, 2)}
    _, table = slots_with(adapters, OUTPUTS, INPUTS, torch.bfloat16, DEVICE, buffers=2, max_rank=16)
    on_host = FactorTable("somewhere", 3)
    for slot, factors in adapters.items():
        on_host.put(slot, factors)
    buffers = torch.tensor([2, 0, 1, 2, 2])
    x, y = inputs(5, torch.bfloat16)
    found = added(x, y, table, buffers.tolist())
    rows, slots, starts = AdapterBatch.sort(buffers.numpy())
    reference.add_lora(x, y, on_host, AdapterBatch(torch.from_numpy(rows), slots, starts))
    torch.testing.assert_close(found, y, atol=3e-2, rtol=2e-2)


def test_many_tokens() -> None:
    """The form of prefills: whole tiles and not, more tokens than one program sorts at a time."""
    adapters = {b: random_factors((r, r), (40, 24), 64, torch.float32, b) for b, r in {1: 8, 2: 33}.items()}
    _, table = slots_with(adapters, (40, 24), 64, torch.float32, DEVICE, buffers=3, max_rank=33)
    buffers = [1] * 900 + [0] * 30 + [2] * 64 + [1] * 7 + [2] * 200
    x, y = inputs(len(buffers), torch.float32, (40, 24), 64)
    assert rows_of(len(buffers), False) == 64
    check(added(x, y, table, buffers), exact(x, y, adapters, buffers), torch.float32, torch.float32)


@pytest.mark.parametrize("buffers", [[], [0, 0, 0]])
def test_nobody(buffers: list[int]) -> None:
    _, table = slots_with({}, OUTPUTS, INPUTS, torch.float32, DEVICE, buffers=2, max_rank=8)
    x, y = inputs(len(buffers), torch.float32)
    assert torch.equal(added(x, y, table, buffers), y)


def test_inputs_that_are_a_part_of_wider_rows() -> None:
    adapters = {1: random_factors((8,), (32,), 64, torch.float32, 1)}
    _, table = slots_with(adapters, (32,), 64, torch.float32, DEVICE, buffers=1, max_rank=8)
    x, y = inputs(4, torch.float32, (32,), 100)
    expected = exact(x[:, 20:84], y, adapters, [1] * 4)
    for some in (x[:, 20:84], x[:, 20:84].t().contiguous().t()):
        check(added(some, y, table, [1] * 4), expected, torch.float32, torch.float32)


def test_a_buffer_that_is_given_to_another_adapter() -> None:
    """Also to one of a smaller rank, and to one that has nothing for this layer."""
    first, second = (random_factors((r, 0, r), OUTPUTS, INPUTS, torch.float32, r) for r in (16, 4))
    x, y = inputs(3, torch.float32)
    slots, table = slots_with({1: first}, OUTPUTS, INPUTS, torch.float32, DEVICE, buffers=1, max_rank=16)
    check(added(x, y, table, [1] * 3), exact(x, y, {1: first}, [1] * 3), torch.float32, torch.float32)
    _replace(slots, second)
    check(added(x, y, table, [1] * 3), exact(x, y, {1: second}, [1] * 3), torch.float32, torch.float32)
    _replace(slots, None)
    assert torch.equal(added(x, y, table, [1] * 3), y)


def _replace(slots: DeviceSlots, factors: Factors | None) -> None:
    by_place = {} if factors is None else {PLACE: factors}
    slots.write(1, pack(slots.layout, by_place, torch.float32, pinned=False))


def test_deterministic_tokens_do_not_depend_on_the_batch() -> None:
    """One form and one number of splits serve every number of tokens and adapters, so a token's sums have the same
    order."""
    adapters = {b: random_factors((r,), (64,), 1100, torch.bfloat16, b) for b, r in {1: 16, 2: 40, 3: 3}.items()}
    _, table = slots_with(adapters, (64,), 1100, torch.bfloat16, DEVICE, buffers=3, max_rank=40, deterministic=True)
    choose = random.Random(0)
    buffers = [choose.randrange(0, 4) for _ in range(PREFILL_TOKENS + 9)]
    x, y = inputs(len(buffers), torch.bfloat16, (64,), 1100)
    whole = added(x, y, table, buffers)
    for begin, end in ((0, 1), (3, 20), (40, 300)):
        some = added(x[begin:end], y[begin:end], table, buffers[begin:end])
        assert torch.equal(some, whole[begin:end])


def test_a_rank_costs_what_it_is() -> None:
    """Splits and tiles grow with tokens and buffers, never with the largest rank."""
    assert tiles_of(64, 9, 16) == 13
    assert tiles_of(4, 9, 16) == 4
    assert tiles_of(64, 65, 16) == 64
    assert [most_splits(tokens, False) for tokens in (0, 1, 64, 2048, 8192, 16384)] == [16, 16, 16, 4, 1, 1]
    assert most_splits(1, True) == most_splits(16384, True) == 4
    assert [programs_of(tiles, 8, 132, False) for tiles in (1, 13, 64, 600)] == [8, 104, 512, 600]
    assert programs_of(600, 4, 132, True) == 2400


@pytest.mark.parametrize("shared_memory", [64 << 10, 99 << 10, 227 << 10])
@pytest.mark.parametrize("tokens", [1, 4096])
def test_loads_in_flight_fit_the_shared_memory(shared_memory: int, tokens: int) -> None:
    for element_size in (2, 4):
        form = form_of(tokens, element_size, False, shared_memory)
        shrink, expand = (form.rows + 64) * form.depth, form.ranks * form.columns
        assert form.stages * max(shrink, expand) * element_size <= shared_memory
