"""Native paged attention against attention written out, on each instruction set that this CPU has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from engine_support.attention_cases import AttentionCase, attention_case
from engine_support.branches import BRANCHES, STEP
from engine_support.native_isa import ISAS, limited_to, needs_native
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.kernels.paged_attention import AttentionVariant, RaggedBatch, native, prepare
from blade_llm.kernels.paged_attention import torch as reference

pytestmark = needs_native

MIXTURE = [1, 20, 1, 1, 7, 45, 1], [300, 20, 3, 64, 140, 45, 1]
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 0.02}
HEADS = [(14, 2), (4, 4), (8, 1), (4, 2)]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with limited_to(request.param):
        yield request.param


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def attend(case: AttentionCase, window: int = 0) -> torch.Tensor:
    step = native.prepare(case.batch, case.table, case.k_cache, case.q.shape[1], False)
    assert isinstance(step, native.Prepared)
    return native.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale, window)


def check(case: AttentionCase, window: int = 0) -> None:
    actual = attend(case, window).double()
    assert (actual - case.expected).abs().max() < TOLERANCE[case.q.dtype] * max(1.0, float(case.expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("head_dim", "heads"), [*((dim, (6, 2)) for dim in (64, 80, 96, 128, 256, 24)), *((64, heads) for heads in HEADS)]
)
def test_mixture_of_prefill_and_decode(isa: str, dtype: torch.dtype, head_dim: int, heads: tuple[int, int]) -> None:
    """Slots beyond each sequence's end hold large numbers, which must not show."""
    check(attention_case(*MIXTURE, *heads, head_dim, dtype, poison=1e4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("window", [1, 16, 33, 600])
def test_sliding_window(isa: str, dtype: torch.dtype, window: int) -> None:
    check(attention_case([1, 150, 1, 5], [1000, 150, 20, 700], 4, 2, 64, dtype, window=window), window)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("block_size", [1, 5, 8, 32])
def test_other_block_sizes(isa: str, dtype: torch.dtype, block_size: int) -> None:
    check(attention_case([1, 30, 1], [531, 150, 7], 6, 2, 64, dtype, block_size=block_size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("heads", [(32, 1), (300, 1)], ids=str)
def test_many_heads_share_a_key_head(isa: str, dtype: torch.dtype, heads: tuple[int, int]) -> None:
    check(attention_case([1, 3], [530, 20], *heads, 16, dtype))


def test_long_contexts(isa: str) -> None:
    check(attention_case([1, 33], [4096, 1100], 7, 1, 64, torch.bfloat16))


def test_an_empty_sequence_gets_zeros(isa: str) -> None:
    for dtype in TOLERANCE:
        check(attention_case([1, 1], [0, 20], 4, 2, 64, dtype))


@settings(max_examples=25, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 600)), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), *HEADS]),
    head_dim=st.sampled_from([16, 48, 64, 72]),
    bf16=st.booleans(),
    window=st.sampled_from([0, 0, 17, 128]),
)
def test_any_batch(
    sequences: list[tuple[int, int]], heads: tuple[int, int], head_dim: int, bf16: bool, window: int
) -> None:
    counts = [count for count, _ in sequences]
    lengths = [count + before for count, before in sequences]
    dtype = torch.bfloat16 if bf16 else torch.float32
    check(attention_case(counts, lengths, *heads, head_dim, dtype, window=window), window)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_sequence_does_not_depend_on_its_batch_or_on_threads(isa: str, dtype: torch.dtype, threads: None) -> None:
    """To the last bit: decodes of every length, alone with one thread and together with two."""
    lengths = [1, 15, 16, 511, 512, 513, 1500]
    case = attention_case([1] * len(lengths), lengths, 14, 2, 64, dtype)
    torch.set_num_threads(2)
    together = attend(case)
    torch.set_num_threads(1)
    for i, length in enumerate(lengths):
        batch = RaggedBatch.of(case.batch.slots[i : i + 1], [1], [length])
        step = native.prepare(batch, case.table, case.k_cache, 14, False)
        alone = native.paged_attention(case.q[i : i + 1], case.k_cache, case.v_cache, step, case.scale, 0)
        assert torch.equal(alone[0], together[i]), length


@pytest.mark.parametrize("heads", [(rows * 2, 2) for rows in range(1, 10)], ids=str)
@pytest.mark.parametrize(
    ("head_dim", "window"),
    [
        *((head_dim, 0) for head_dim in (32, 64, 96, 128, 256)),
        *(
            pytest.param(head_dim, 70, marks=[] if head_dim == 64 else pytest.mark.soak)
            for head_dim in (32, 64, 96, 128, 256)
        ),
    ],
)
def test_decodes_of_few_query_heads(isa: str, heads: tuple[int, int], head_dim: int, window: int) -> None:
    """Every number of heads that have a kernel of their own, and one more; contexts that end anywhere in a block of
    keys, and of several parts."""
    lengths = [1, 2, 16, 17, 63, 64, 65, 300, 512, 600, 1100]
    check(attention_case([1] * 11, lengths, *heads, head_dim, torch.bfloat16, window=window, poison=1e4), window)


def test_deterministic_decodes_have_the_bits_of_prefills(isa: str) -> None:
    """Of a context of one part: a decode, and the same token as the last of several."""
    case = attention_case([5], [300], 14, 2, 64, torch.bfloat16)
    alone = RaggedBatch.of(case.batch.slots, [1], [300])
    results = [
        native.paged_attention(
            q, case.k_cache, case.v_cache, native.prepare(batch, case.table, case.k_cache, 14, True), case.scale, 0
        )[-1]
        for q, batch in ((case.q, case.batch), (case.q[-1:], alone))
    ]
    assert torch.equal(*results)


def test_queries_may_be_part_of_a_larger_tensor(isa: str) -> None:
    case = attention_case(*MIXTURE, 14, 2, 64, torch.bfloat16)
    fused = torch.cat((case.q, torch.full_like(case.q, 9.0)), dim=1)[:, :14]
    step = native.prepare(case.batch, case.table, case.k_cache, 14, False)
    expected = attend(case)
    assert torch.equal(native.paged_attention(fused, case.k_cache, case.v_cache, step, case.scale, 0), expected)
    scattered = case.q.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(native.paged_attention(scattered, case.k_cache, case.v_cache, step, case.scale, 0), expected)


def test_queries_of_another_type_are_refused() -> None:
    case = attention_case([1], [20], 4, 2, 64, torch.bfloat16)
    step = native.prepare(case.batch, case.table, case.k_cache, 4, False)
    with pytest.raises(TypeError, match="must be the same"):
        native.paged_attention(case.q.float(), case.k_cache, case.v_cache, step, case.scale, 0)


def test_a_broken_sequence_stays_alone(isa: str) -> None:
    """NaN in one sequence's queries, and in the unused cache slots of everybody's blocks, reaches nobody else."""
    case = attention_case([1, 20, 1], [100, 60, 30], 14, 2, 64, torch.bfloat16, poison=float("nan"))
    case.q[0] = float("nan")
    actual = attend(case)
    assert (actual[1:].double() - case.expected[1:]).abs().max() < 0.1


def test_a_type_it_does_not_know_is_left_to_torch() -> None:
    case = attention_case([1, 20], [50, 20], 4, 2, 64, torch.float16)
    step = prepare(case.batch, case.table, case.k_cache, 4)
    assert isinstance(step, reference.Prepared)
    actual = native.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale, 0)
    assert (actual.double() - case.expected).abs().max() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("heads", "head_dim"), [((14, 2), 80), ((8, 1), 128)])
def test_tokens_that_branch(isa: str, dtype: torch.dtype, heads: tuple[int, int], head_dim: int) -> None:
    check(attention_case(*STEP, *heads, head_dim, dtype, branches=BRANCHES, poison=1e4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("window", [130])
def test_a_window_counts_positions_not_places(isa: str, dtype: torch.dtype, window: int) -> None:
    check(attention_case(*STEP, 4, 2, 64, dtype, branches=BRANCHES, window=window), window)


def test_tokens_that_branch_and_have_slopes_are_refused(isa: str) -> None:
    case = attention_case(*STEP, 4, 2, 64, torch.float32, branches=BRANCHES)
    step = native.prepare(case.batch, case.table, case.k_cache, 4, False)
    with pytest.raises(ValueError, match="tokens that branch have no ALiBi slopes"):
        native.paged_attention(case.q, case.k_cache, case.v_cache, step, 1.0, 0, AttentionVariant(slopes=torch.ones(4)))
