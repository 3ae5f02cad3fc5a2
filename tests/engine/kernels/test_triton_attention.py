"""The Triton kernels of paged attention against attention written out: in the interpreter, or compiled on a GPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from engine_support.attention_cases import AttentionCase, attention_case
from engine_support.branches import BRANCHES, STEP
from engine_support.pairwise import in_turn
from engine_support.triton_interpreter import COMPILED, DEVICE
from engine_support.triton_mixed_graph import in_graph

import engine_support.triton_products  # noqa: F401  isort: skip
from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.kernels.paged_attention import triton as kernels

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def case_of(*args: object, **options: object) -> AttentionCase:
    return attention_case(*args, device=str(DEVICE), **options)  # type: ignore[arg-type]


def attend(case: AttentionCase, window: int = 0, deterministic: bool = False, segments: int = 0) -> torch.Tensor:
    step = kernels.prepare(case.batch, case.table, case.k_cache, case.q.shape[1], deterministic)
    if segments:
        step = dataclasses.replace(step, segments=segments)
    return kernels.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale, window)


def check(case: AttentionCase, actual: torch.Tensor) -> None:
    assert actual.dtype == case.q.dtype
    torch.testing.assert_close(actual.double().cpu(), case.expected, atol=TOLERANCE[case.q.dtype], rtol=1e-2)


MIXED = ([1, 1, 21, 5, 1], [40, 1, 73, 5, 17])
"""Decodes first, then a chunk behind a prefix, a whole prompt, and a decode out of order."""


@pytest.mark.parametrize(
    ("head_dim", "heads", "dtype"),
    [
        (8, (4, 2), torch.float32),
        (64, (14, 2), torch.bfloat16),
        (80, (3, 3), torch.float16),
        (96, (4, 2), torch.bfloat16),
        (128, (7, 1), torch.float32),
        (128, (7, 1), torch.bfloat16),
        (128, (7, 1), torch.float16),
        (256, (8, 1), torch.bfloat16),
    ],
    ids=str,
)
def test_mixed_step(head_dim: int, heads: tuple[int, int], dtype: torch.dtype) -> None:
    case = case_of(*MIXED, *heads, head_dim, dtype, poison=float("nan"))
    check(case, attend(case))


@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (8, 2), (7, 1), (16, 2), (24, 1)], ids=str)
def test_query_heads_share_key_heads(heads: tuple[int, int]) -> None:
    case = case_of([1, 1, 9], [70, 3, 30], *heads, 64, torch.float32)
    check(case, attend(case))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 200])
def test_prefill_of_odd_sizes(length: int) -> None:
    case = case_of([length], [length], 4, 2, 64, torch.float32, poison=1e4)
    check(case, attend(case))


@pytest.mark.parametrize("segments", [1, 2, 8])
def test_split_decode(segments: int) -> None:
    """Contexts of fewer tiles than there are parts, of as many, and of more."""
    case = case_of([1] * 5, [1, 64, 65, 129, 700], 7, 1, 64, torch.float32, poison=1e4)
    check(case, attend(case, segments=segments))


@pytest.mark.parametrize("queries", [1, 16])
def test_long_context(queries: int) -> None:
    case = case_of([queries], [4096], 7, 1, 128, torch.bfloat16)
    check(case, attend(case, segments=16))


@pytest.mark.parametrize(
    ("window", "deterministic"),
    [(1, False), (17, False), (64, False), (100, False), (5000, False), (17, True), (100, True)],
)
def test_sliding_window(window: int, deterministic: bool) -> None:
    case = case_of([1, 1, 30, 40], [200, 3, 190, 40], 4, 2, 64, torch.float32, window=window, poison=1e4)
    check(case, attend(case, window, deterministic, segments=0 if deterministic else 4))


@pytest.mark.parametrize("segments", [1, 4])
def test_sequences_without_tokens(segments: int) -> None:
    """Padding of a captured decode has a length of zero, of a prefill no new tokens; neither disturbs the others."""
    case = case_of([1, 1, 0, 20, 0], [90, 0, 0, 60, 33], 4, 2, 64, torch.float32)
    check(case, attend(case, segments=segments))


@pytest.mark.parametrize(("sequences", "tokens"), [(6, 33), (6, 64), (40, 200)])
@pytest.mark.parametrize(
    "lens",
    [
        MIXED,
        ([1], [300]),
        ([1, 1, 1], [300, 1, 65]),
        ([20], [33]),
        ([9, 1, 7], [9, 1, 90]),
        ([1, 2], [129, 2]),
        ([], []),
    ],
    ids=str,
)
def test_one_graph_serves_every_mixture(lens: tuple[list[int], list[int]], sequences: int, tokens: int) -> None:
    if not lens[0]:
        case = case_of([1], [5], 4, 2, 64, torch.float32)
        in_graph(dataclasses.replace(case, batch=RaggedBatch.of(case.batch.slots[:0], [], [])), sequences, tokens)
        return
    case = case_of(*lens, 4, 2, 64, torch.float32, poison=float("nan"))
    check(case, in_graph(case, sequences, tokens))


@pytest.mark.parametrize("processors", [1, 2, pytest.param(33, marks=pytest.mark.soak), 132])
def test_a_graph_divides_contexts_as_a_launch_does(processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a decode gets the same bits; and the parts have room, however many decodes there are."""
    monkeypatch.setattr(kernels, "_processors", lambda device: processors)
    for decodes in (1, 3, 8, 17):
        case = case_of([1] * decodes, [40 + 7 * i for i in range(decodes)], 4, 2, 64, torch.float32)
        assert torch.equal(in_graph(case, 20, 40), attend(case))
    for window, deterministic in ((17, False), (0, True), (17, True)):
        case = case_of([1, 1, 30, 40], [200, 3, 190, 40], 4, 2, 64, torch.float32, window=window, poison=1e4)
        check(case, in_graph(case, 7, 90, window, deterministic=deterministic))


@pytest.mark.parametrize("block_size", [8, 32])
def test_other_block_sizes(block_size: int) -> None:
    case = case_of([1, 30], [70, 100], 4, 2, 64, torch.float32, block_size=block_size)
    check(case, attend(case))


def test_queries_inside_the_fused_projection() -> None:
    case = case_of([1, 9], [20, 9], 4, 2, 64, torch.float32)
    fused = torch.zeros(10, 8, 64, device=DEVICE)
    fused[:, :4] = case.q
    check(case, attend(dataclasses.replace(case, q=fused[:, :4])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_deterministic_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's output is the same in any batch, and whether it was decoded, in a chunk or in a whole prefill.

    The interpreter multiplies with numpy, whose library sums a row in another order at another place in the matrix on
    some CPUs, as no GPU does: here it sums in order.
    """
    monkeypatch.setattr(np, "matmul", lambda a, b, **_: (a[:, :, None] * b[None]).sum(1))
    length = 600  # two fixed parts
    whole = case_of([length], [length], 2, 1, 64, dtype)
    table = torch.nn.functional.pad(whole.table, (0, 20))

    def tokens(query_lens: list[int], seq_lens: list[int], slots: list[int], queries: torch.Tensor) -> torch.Tensor:
        batch = RaggedBatch.of(torch.tensor(slots, device=DEVICE), query_lens, seq_lens)
        step = kernels.prepare(batch, table, whole.k_cache, 2, deterministic=True)
        assert step.segments == 2
        return kernels.paged_attention(queries, whole.k_cache, whole.v_cache, step, whole.scale)

    slot = whole.batch.slots.tolist()[0]
    last = whole.q[-1:]
    decoded = tokens([1], [length], [slot], last)
    together = tokens([1, 1, 1], [3, length, 520], [slot] * 3, torch.cat([whole.q[:1], last, whole.q[5:6]]))
    assert torch.equal(together[1], decoded[0])
    chunk = tokens([3, 33], [70, length], [slot] * 2, torch.cat([whole.q[:3], whole.q[-33:]]))
    assert torch.equal(chunk[-1], decoded[0])
    prefix = tokens([1, 70], [length, length - 1], [slot] * 2, torch.cat([last, whole.q[-71:-1]]))
    assert torch.equal(prefix[-32:], chunk[-33:-1])
    check(dataclasses.replace(whole, expected=whole.expected[-1:]), decoded)


def test_nothing_is_decided_by_lengths() -> None:
    """What a CUDA graph needs: a step prepared once stays right while its tensors change under it."""
    case = case_of([1, 1], [300, 150], 4, 2, 64, torch.float32)
    seq_lens, slots = torch.ones_like(case.batch.seq_lens), torch.zeros_like(case.batch.slots)
    batch = dataclasses.replace(case.batch, seq_lens=seq_lens, slots=slots, host_seq_lens=[])
    step = dataclasses.replace(kernels.prepare(batch, case.table, case.k_cache, 4), segments=4)
    kernels.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale)
    seq_lens.copy_(case.batch.seq_lens)
    slots.copy_(case.batch.slots)
    check(case, kernels.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale))


def test_parts_fill_the_gpu_and_no_more() -> None:
    assert kernels.segments_of(1, 4, processors=132) == 64
    assert kernels.segments_of(8, 4, processors=132) == 8
    assert kernels.segments_of(32, 4, processors=132) == 2
    assert kernels.segments_of(256, 4, processors=132) == 1
    assert kernels.segments_of(17, 4, 132) == kernels.segments_of(32, 4, 132)


def test_short_prefills_take_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they fill the GPU; and deterministic steps the same tiles for everything."""
    monkeypatch.setattr(kernels, "_processors", lambda device: 132)
    k_cache = torch.empty(1, 16, 4, 128, dtype=torch.bfloat16, device=DEVICE)
    batch = RaggedBatch.of(torch.zeros(1, dtype=torch.int64, device=DEVICE), [2], [2])
    table = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE)
    usual = kernels.prepare(batch, table, k_cache, 28)
    rows = {tokens: kernels._config(k_cache, 28, usual, tokens, decode=False).rows for tokens in (256, 2048)}
    assert rows == {256: 64, 2048: 128}
    fixed = kernels.prepare(batch, table, k_cache, 28, deterministic=True)
    forms = {kernels._config(k_cache, 28, fixed, tokens, decode) for tokens in (1, 9999) for decode in (False, True)}
    assert len(forms) == 1


def test_many_decodes_have_fewer_loads_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that more programs fit on a multiprocessor, and hide each other's waiting."""
    monkeypatch.setattr(kernels, "_processors", lambda device: 132)
    monkeypatch.setattr(kernels, "_shared_memory", lambda device: 227 << 10)
    k_cache = torch.empty(1, 16, 4, 128, dtype=torch.bfloat16, device=DEVICE)
    table = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE)

    def stages(decodes: int, deterministic: bool = False) -> int:
        batch = RaggedBatch.of(torch.zeros(decodes, dtype=torch.int64, device=DEVICE), [1] * decodes, [1] * decodes)
        step = kernels.prepare(batch, table, k_cache, 28, deterministic)
        return kernels._config(k_cache, 28, step, decodes, decode=True).stages

    assert [stages(decodes) for decodes in (1, 8, 64, 99, 100, 256)] == [5, 5, 5, 5, 3, 3]
    assert stages(1, deterministic=True) == stages(256, deterministic=True)


def test_loads_in_flight_fit_shared_memory() -> None:
    hopper = kernels.config_of(128, 7, 2, 227 << 10, "prefill")
    small = kernels.config_of(128, 7, 2, 64 << 10, "prefill")
    assert (hopper.stages, small.stages) == (5, 1)
    assert kernels.config_of(64, 24, 2, 227 << 10, "decode").rows == 32
    assert kernels.config_of(64, 4, 4, 227 << 10, "decode").tile == 32


def test_warm_runs_every_form_and_writes_nothing() -> None:
    case = case_of([1], [20], 4, 2, 64, torch.float32)
    before = case.k_cache.clone()
    for deterministic in (False, True):
        kernels.warm(case.k_cache, case.table, 4, (0, 8), deterministic)
    assert torch.equal(case.k_cache, before)


@pytest.mark.gpu
@pytest.mark.skipif(not COMPILED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("deterministic", [False, True])
def test_nothing_compiles_after_warm(deterministic: bool) -> None:
    from triton import knobs

    compiled: list[object] = []

    def with_same_table(case: AttentionCase) -> AttentionCase:
        """As wide as all others' too: an engine has one table."""
        return dataclasses.replace(case, table=torch.nn.functional.pad(case.table, (0, 100 - case.table.shape[1])))

    case = with_same_table(case_of([1], [700], 28, 4, 128, torch.bfloat16))
    kernels.warm(case.k_cache, case.table, 28, (0, 64), deterministic)
    knobs.runtime.jit_post_compile_hook = lambda *args, **kwargs: compiled.append(kwargs)
    try:
        for batch in (MIXED, ([1], [1]), ([1] * 16, [16] * 16), ([1] * 257, [40] * 257), ([33], [700]), ([900], [900])):
            case = with_same_table(case_of(*batch, 28, 4, 128, torch.bfloat16))
            for window in (0, 64):
                attend(case, window, deterministic)
    finally:
        knobs.runtime.jit_post_compile_hook = None
    assert not compiled


@pytest.mark.gpu
@pytest.mark.skipif(not COMPILED, reason="needs a GPU")
def test_captured_decode_follows_its_tensors() -> None:
    case = case_of([1] * 8, [700, 1, 16, 33, 2000, 5, 64, 129], 28, 4, 128, torch.bfloat16)
    kernels.warm(case.k_cache, case.table, 28)
    seq_lens = torch.ones_like(case.batch.seq_lens)
    step = kernels.prepare(dataclasses.replace(case.batch, seq_lens=seq_lens), case.table, case.k_cache, 28)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale)
    seq_lens.copy_(case.batch.seq_lens)
    graph.replay()
    check(case, out)


HOW = [pytest.param(*each) for each in ((0, False), (130, False), (0, True))]
HEADS = [pytest.param(*each) for each in (((4, 2), torch.float32), ((14, 2), torch.bfloat16))]


@pytest.mark.parametrize(("window", "deterministic", "heads", "dtype"), in_turn(HOW, HEADS))
def test_tokens_that_branch(heads: tuple[int, int], dtype: torch.dtype, window: int, deterministic: bool) -> None:
    case = case_of(*STEP, *heads, 64, dtype, branches=BRANCHES, window=window, poison=1e4)
    check(case, attend(case, window, deterministic))


FEW = ([1, 1, 5, 3, 2, 40], [300, 3, 700, 3, 90, 200])
"""Decodes, then what a step verifies, then a prefill."""


@pytest.fixture
def large_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many multiprocessors as it takes to divide contexts, also in the interpreter."""
    monkeypatch.setattr(kernels, "_processors", lambda device: 64)


@pytest.mark.parametrize(
    ("window", "heads", "dtype"),
    in_turn([0, 17], [pytest.param((4, 2), torch.float32), pytest.param((7, 1), torch.bfloat16)]),
)
def test_contexts_of_few_new_tokens_are_divided(
    large_gpu: None, heads: tuple[int, int], dtype: torch.dtype, window: int
) -> None:
    case = case_of(*FEW, *heads, 64, dtype, window=window, poison=1e4)
    case = dataclasses.replace(case, batch=dataclasses.replace(case.batch, divided=True))
    step = kernels.prepare(case.batch, case.table, case.k_cache, heads[0])
    assert (step.decodes, step.shorts, step.short_tokens) == (2, 3, 10)
    assert step.short_segments > 1
    check(case, kernels.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale, window))
    check(case, in_graph(case, 8, 56, window, divided=True))


def test_nothing_else_than_what_is_verified(large_gpu: None) -> None:
    for counts, lengths in (([5, 5], [300, 20]), ([1, 1], [300, 20]), ([1, 30], [9, 300])):
        case = case_of(counts, lengths, 4, 2, 64, torch.float32)
        check(case, attend(dataclasses.replace(case, batch=dataclasses.replace(case.batch, divided=True))))
        check(case, in_graph(case, 3, 34, divided=True))


def test_branches_of_few_tokens_are_divided(large_gpu: None) -> None:
    tree = {2: [-1, 0, 0, 1, 2], 3: [-1, 0, 0]}
    case = case_of([1, 1, 5, 3, 40], [300, 3, 700, 3, 200], 4, 2, 64, torch.float32, branches=tree)
    assert kernels.prepare(case.batch, case.table, case.k_cache, 4).shorts == 0
    case = dataclasses.replace(case, batch=dataclasses.replace(case.batch, divided=True))
    assert kernels.prepare(case.batch, case.table, case.k_cache, 4).shorts == 2
    check(case, attend(case))
