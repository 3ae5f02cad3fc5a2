"""The Triton kernels over the quantised KV cache against the torch implementations: in the interpreter, or compiled."""

from __future__ import annotations

import pytest
import torch
from engine_support.attention_cases import attention_case
from engine_support.quantized_rows import FORMS, empty_caches, expected, packed, rows_of
from engine_support.triton_interpreter import DEVICE

import engine_support.triton_products  # noqa: F401  isort: skip
from blade_llm.kernels.paged_attention import triton as kernels
from blade_llm.kernels.rope_write_kv import torch as rope_reference
from blade_llm.kernels.rope_write_kv import triton as rope
from blade_llm.kv_quant import KVCacheQuant

EVERY = pytest.mark.parametrize("form", FORMS)
MIXED = ([1, 1, 21, 5, 1], [40, 1, 73, 5, 17])


@EVERY
@pytest.mark.parametrize(
    ("head_dim", "heads", "groups", "dtype"),
    [(64, (4, 2), 1, torch.float32), (80, (3, 3), 4, torch.float16), (128, (7, 1), 2, torch.bfloat16)],
    ids=str,
)
def test_attention(form: KVCacheQuant, head_dim: int, heads: tuple[int, int], groups: int, dtype: torch.dtype) -> None:
    case = attention_case(*MIXED, *heads, head_dim, dtype)
    rows = rows_of(form, head_dim, dtype, groups)
    k_cache, v_cache = (cache.to(DEVICE) for cache in packed(case, rows))
    wanted = expected(case, rows)
    case = attention_case(*MIXED, *heads, head_dim, dtype, device=str(DEVICE))
    step = kernels.prepare(case.batch, case.table, k_cache, heads[0], False, rows)
    actual = kernels.paged_attention(case.q, k_cache, v_cache, step, case.scale)
    tolerance = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.float().cpu(), wanted, atol=tolerance, rtol=1e-2)


@EVERY
@pytest.mark.parametrize(("head_dim", "groups"), [(64, 1), (80, 5), (96, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_packing_is_the_same_bits(form: KVCacheQuant, head_dim: int, groups: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows = rows_of(form, head_dim, dtype, groups)
    tokens, heads, kv_heads = 12, 3, 2
    qkv = (torch.randn(tokens, (heads + 2 * kv_heads) * head_dim) * torch.logspace(-6, 4, tokens).view(-1, 1)).to(dtype)
    qkv[3] = 0
    angles, slots = torch.zeros(tokens, head_dim // 2), torch.randperm(48)[:tokens]
    written = []
    for implementation in (rope, rope_reference):
        caches = empty_caches(rows, 3, kv_heads, DEVICE)
        where = [each.to(DEVICE) for each in (qkv, angles.cos(), angles.sin(), slots)]
        q = implementation.rope_write_kv(*where, *caches, heads, rows=rows)
        written.append((q.float(), *caches))
    torch.testing.assert_close(written[0][0], written[1][0])
    for ours, torchs in zip(written[0][1:], written[1][1:], strict=True):
        assert ours.any()
        different = (ours != torchs).any(-1)
        assert not different.any(), f"{int(different.sum())} rows differ"


def test_what_is_no_number_stays_none() -> None:
    rows = rows_of("int8", 64, torch.float32)
    qkv = torch.ones(1, 3 * 64, device=DEVICE)
    qkv[0, 70] = torch.nan
    caches = [torch.zeros(1, 16, 1, rows.row_bytes, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
    angles = torch.zeros(1, 32, device=DEVICE)
    rope.rope_write_kv(qkv, angles.cos(), angles.sin(), torch.zeros(1, dtype=torch.int64, device=DEVICE), *caches, 1,
                       rows=rows)  # fmt: skip
    keys, values = (rows.dequantize(cache[0, 0, 0]) for cache in caches)
    assert keys.isnan().any()
    torch.testing.assert_close(values, torch.ones_like(values), atol=1e-3, rtol=0)
