"""Attention without a KV cache, and the split before it, against attention written out, on each instruction set that
this CPU has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from engine_support.native_isa import ISAS, limited_to, needs_native

from blade_llm.kernels.full_attention import native
from blade_llm.kernels.full_attention import torch as reference
from blade_llm.kernels.rope_split import native as split
from blade_llm.kernels.rope_split import torch as split_reference

pytestmark = needs_native

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.fixture(params=ISAS, autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with limited_to(request.param):
        torch.manual_seed(0)
        yield request.param


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: int) -> torch.Tensor:
    """In fp64."""
    rows, heads, dim = q.shape
    queries = q.double().view(sequences, rows // sequences, heads, dim).transpose(1, 2)
    keys, values = (each.double().view(heads, sequences, -1, dim).transpose(0, 1) for each in (k, v))
    scores: torch.Tensor = queries @ keys.transpose(2, 3) * dim**-0.5
    return (scores.softmax(-1) @ values).transpose(1, 2).reshape(rows, heads, dim)


def inputs(rows: int, keys: int, heads: int, dim: int) -> list[torch.Tensor]:
    return [
        torch.randn(shape).mul(1.5).bfloat16() for shape in ((rows, heads, dim), (heads, keys, dim), (heads, keys, dim))
    ]


@pytest.mark.parametrize("dim", [8, 20, 64, 72, 80, 128])
@pytest.mark.parametrize(
    ("sequences", "rows", "keys"), [(1, 1, 1), (1, 300, 700), (1, 5, 1023), (7, 16, 16), (3, 12, 12), (2, 64, 130)]
)
def test_attention(sequences: int, rows: int, keys: int, dim: int) -> None:
    q, k, v = inputs(sequences * rows, sequences * keys, 3, dim)
    expected, others = written_out(q, k, v, sequences), q.clone()
    native.attend(q, k, v, sequences)
    assert (q.double() - expected).abs().max() < 0.02 * max(1.0, float(expected.abs().max()))
    reference.full_attention(others, k, v, sequences)
    assert (q.double() - expected).abs().mean() < 1.3 * (others.double() - expected).abs().mean() + 1e-6


def test_memory_around_is_neither_read_nor_written() -> None:
    """Some heads and rows of larger tensors, whose other numbers are NaN."""
    q, k, v = (torch.full(shape, torch.nan).bfloat16() for shape in ((40, 6, 80), (6, 100, 80), (6, 100, 80)))
    inner = q[7:20, 2:4], k[2:4, 9:60], v[2:4, 9:60]
    for each in inner:
        each.copy_(torch.randn(each.shape))
    expected = written_out(inner[0].contiguous(), inner[1].contiguous(), inner[2].contiguous(), 1)
    native.attend(*inner, 1)
    torch.testing.assert_close(inner[0].double(), expected, atol=0.02, rtol=0.02)
    assert int(q.isfinite().sum()) == inner[0].numel()


def test_a_query_does_not_depend_on_the_others() -> None:
    """Nor on the number of threads: the same bits."""
    q, k, v = inputs(300, 1500, 2, 80)
    whole = q.clone()
    native.attend(whole, k, v, 1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for first, end in ((0, 1), (1, 30), (30, 97), (97, 300)):
            native.attend(q[first:end], k, v, 1)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(q, whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=["bf16", "fp32", "fp16"])
@pytest.mark.parametrize("dim", [64, 72, 80])
def test_whatever_the_cpu_is_best_at(dtype: torch.dtype, dim: int) -> None:
    q, k, v = (each.to(dtype) for each in inputs(3 * 20, 3 * 30, 4, dim))
    wide = torch.zeros(4, 100, dim, dtype=dtype)  # heads of keys as far apart as those of values, or not
    wide[:, 7:97] = k
    expected = written_out(q, k, v, 3)
    for keys in (k, wide[:, 7:97]):
        result = q.clone()
        native.full_attention(result, keys, v, 3)
        torch.testing.assert_close(result.double(), expected, atol=0.02, rtol=0.02)


def test_rows_that_make_no_sequences_are_refused() -> None:
    q, k, v = inputs(20, 30, 2, 64)
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        native.full_attention(q, k, v, 3)


@DTYPES
@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize(("rows", "dim"), [(1, 4), (9, 20), (70, 64), (33, 80), (5, 128), (3, 34)])
def test_split(dtype: torch.dtype, rotated: bool, rows: int, dim: int) -> None:
    heads, before = 3, 2
    qkv = torch.randn(rows, 3 * heads * dim).to(dtype)
    turns = torch.randn(rows, dim // 2)
    angles = (turns.cos(), turns.sin()) if rotated else None
    made = []
    for implementation in (split, split_reference):
        q = torch.zeros(rows, heads, dim, dtype=dtype)
        k, v = (torch.zeros(heads, before + rows + 1, dim, dtype=dtype) for _ in range(2))
        some = slice(before, before + rows)
        implementation.rope_split(qkv.clone(), angles, q, k[:, some], v[:, some])
        made.append((q, k, v))
    for mine, theirs in zip(*made, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=2e-6)
        else:  # a product and a sum may be rounded at once
            torch.testing.assert_close(mine, theirs, atol=0.01, rtol=0.01)
            assert (mine != theirs).float().mean() < 0.01
