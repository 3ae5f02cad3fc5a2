"""Rows of the quantised KV cache: what packing loses, and that every implementation packs and reads the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from engine_support.attention_cases import attention_case
from engine_support.attention_variants import NAMES, batch_of, variant_of
from engine_support.native_isa import ISAS, limited_to, needs_native
from engine_support.quantized_rows import FORMS, METHODS, empty_caches, expected, packed, rows_of

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.paged_attention import native
from blade_llm.kernels.paged_attention import torch as reference
from blade_llm.kernels.rope_write_kv import native as rope
from blade_llm.kernels.rope_write_kv import torch as rope_reference
from blade_llm.kv_quant import MIXED, KVCacheQuant, KVMethod, KVQuant

EVERY = pytest.mark.parametrize("method", METHODS)
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
TOLERANCE = {torch.float32: 3e-4, torch.bfloat16: 0.02}
MIXTURE = [1, 20, 1, 1, 7, 45, 1], [600, 20, 3, 64, 140, 45, 1]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with limited_to(request.param):
        yield request.param


@EVERY
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_what_packing_loses(method: KVMethod, groups: int) -> None:
    """At most half a step of a group's scale, of fp8 half a unit of the last bit; and a row has the bytes it says."""
    torch.manual_seed(0)
    x = torch.randn(50, 3, 64) * torch.logspace(-3, 3, 50).view(-1, 1, 1)
    rows = rows_of(method, 64, torch.float32, groups)
    stored = rows.quantize(x)
    assert stored.dtype == torch.uint8
    assert stored.shape == (50, 3, rows.row_bytes)
    error = (rows.dequantize(stored) - x).unflatten(-1, (groups, -1)).abs()
    wide = x.unflatten(-1, (groups, -1))
    largest = wide.abs().amax(-1, keepdim=True)
    steps = {"int8": largest / 127, "int4": largest / 8 * 2}  # the last level of the other sign is cut off
    steps |= {f"int{bits}_affine": (wide.amax(-1, keepdim=True) - wide.amin(-1, keepdim=True)) / (2**bits - 1)
              for bits in (4, 8)}  # fmt: skip
    units = {"fp8_e4m3": 2**-3, "fp8_e5m2": 2**-2}
    allowed = steps[method] if method in steps else wide.abs() * units[method] + largest * 2**-15
    assert (error <= 0.501 * allowed + largest * 2e-3).all()


@pytest.mark.parametrize(
    ("method", "bytes_of_64"),
    [("int8", 66), ("int4", 34), ("int8_affine", 68), ("int4_affine", 36), ("fp8_e4m3", 66), ("fp8_e5m2", 66)],
)
def test_bytes_of_a_row(method: KVMethod, bytes_of_64: int) -> None:
    assert KVQuant(method).row_bytes(64) == bytes_of_64
    more = 4 if method.endswith("affine") else 2
    assert KVQuant(method, 4).row_bytes(64) == bytes_of_64 + 3 * more


@pytest.mark.parametrize(
    ("form", "keys", "values"),
    [
        ("mix_f852i4", ("fp8_e5m2", 66), ("int4", 34)),
        ("mix_f843i4", ("fp8_e4m3", 66), ("int4", 34)),
        ("mix_i8i4", ("int8", 66), ("int4", 34)),
        ("mix_i4i4", ("int4_affine", 36), ("int4", 34)),
        ("int4", ("int4", 34), ("int4", 34)),
    ],
)
def test_keys_and_values_of_mixed_forms(
    form: KVCacheQuant, keys: tuple[KVMethod, int], values: tuple[KVMethod, int]
) -> None:
    rows = rows_of(form, 64, torch.float32)
    assert (rows.quant.method, rows.row_bytes) == keys
    assert (rows.values.quant.method, rows.values.row_bytes) == values
    parts = rows_of(form, 64, torch.float32, 4)
    assert (parts.quant.groups, parts.values.quant.groups) == (4, 4)
    assert (form in MIXED) == (keys != values)


def test_heads_of_an_odd_width_have_no_4_bit_values() -> None:
    assert "int4 needs heads of an even width, not 7" in (KVQuant.of("mix_i8i4").problem(7) or "")
    assert KVQuant.of("int8").problem(7) is None
    with pytest.raises(ValueError, match="no_quant packs no rows"):
        KVQuant.of("no_quant")


@EVERY
def test_what_is_no_number_stays_none(method: KVMethod) -> None:
    rows = rows_of(method, 16, torch.float32)
    broken, zeros = torch.ones(16), torch.zeros(16)
    broken[3] = torch.nan
    assert rows.dequantize(rows.quantize(broken)).isnan().any()
    assert torch.equal(rows.dequantize(rows.quantize(zeros)), zeros)


@EVERY_FORM
@DTYPES
@pytest.mark.parametrize(("head_dim", "groups"), [(8, 1), (64, 1), (80, 2)])
@needs_native
def test_native_packing_is_the_same_bits(
    isa: str, form: KVCacheQuant, dtype: torch.dtype, head_dim: int, groups: int
) -> None:
    torch.manual_seed(0)
    tokens, heads, kv_heads = 40, 3, 2
    rows = rows_of(form, head_dim, dtype, groups)
    qkv = (torch.randn(tokens, (heads + 2 * kv_heads) * head_dim) * torch.logspace(-9, 5, tokens).view(-1, 1)).to(dtype)
    qkv[3] = 0
    angles = torch.zeros(tokens, head_dim // 2)  # keys keep their bits: a rotation may round otherwise
    slots = torch.randperm(48)[:tokens]
    written = []
    for implementation in (rope, rope_reference):
        caches = empty_caches(rows, 3, kv_heads)
        implementation.rope_write_kv(
            qkv, angles.cos(), angles.sin(), slots, *caches, heads, None, None, 1e-6, False, rows
        )
        written.append(caches)
    for ours, torchs in zip(*written, strict=True):
        assert ours.any()
        different = (ours != torchs).any(-1)
        assert not different.any(), f"{int(different.sum())} rows differ"


@needs_native
def test_native_packing_after_rotation_and_norms(isa: str) -> None:
    torch.manual_seed(0)
    rows = rows_of("int8", 64, torch.bfloat16)
    qkv, angles = torch.randn(9, 7 * 64).bfloat16(), torch.randn(9, 32)
    norms = [(torch.rand(64) + 0.5).bfloat16() for _ in range(2)]
    read = []
    for implementation in (rope, rope_reference):
        caches = [torch.zeros(1, 16, 2, rows.row_bytes, dtype=torch.uint8) for _ in range(2)]
        q = implementation.rope_write_kv(
            qkv, angles.cos(), angles.sin(), torch.arange(9), *caches, 3, *norms, 1e-6, False, rows
        )
        read.append(torch.cat([q.flatten(), *(rows.dequantize(cache[0, :9]).flatten() for cache in caches)]))
    torch.testing.assert_close(*read, rtol=0.02, atol=0.05)
    assert (read[0] != read[1]).float().mean() < 0.05


@EVERY_FORM
@DTYPES
def test_the_reference_reads_what_it_wrote(form: KVCacheQuant, dtype: torch.dtype) -> None:
    case = attention_case(*MIXTURE, 6, 2, 64, dtype)
    rows = rows_of(form, 64, dtype)
    k_cache, v_cache = packed(case, rows)
    for deterministic in (False, True):
        step = reference.prepare(case.batch, case.table, k_cache, 6, deterministic, rows)
        actual = reference.paged_attention(case.q, k_cache, v_cache, step, case.scale)
        close(actual, expected(case, rows))


@EVERY_FORM
@DTYPES
@pytest.mark.parametrize(
    ("head_dim", "heads", "groups"),
    [(64, (14, 2), 1), (128, (4, 2), 2), (80, (6, 2), 5), (64, (40, 1), 1)],
)  # fmt: skip
@needs_native
def test_native_attention(
    isa: str, form: KVCacheQuant, dtype: torch.dtype, head_dim: int, heads: tuple[int, int], groups: int
) -> None:
    check_native(rows_of(form, head_dim, dtype, groups), heads)


@EVERY_FORM
@pytest.mark.parametrize("window", [33])
@needs_native
def test_native_attention_with_a_window(isa: str, form: KVCacheQuant, window: int) -> None:
    check_native(rows_of(form, 64, torch.bfloat16), (6, 2), window)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["int8", "int4_affine", "fp8_e4m3", "mix_i8i4"])
@needs_native
def test_native_attention_variants(isa: str, form: KVCacheQuant, name: str) -> None:
    variant = variant_of(name, 4)
    case = attention_case(*batch_of(name), 4, 2, 64, torch.bfloat16, variant=variant)
    rows = rows_of(form, 64, torch.bfloat16)
    step = native.prepare(case.batch, case.table, *packed(case, rows)[:1], 4, False, rows)
    actual = native.paged_attention(case.q, *packed(case, rows), step, case.scale, 0, variant)
    close(actual, expected(case, rows, variant=variant))


@EVERY_FORM
@needs_native
def test_a_step_of_fixed_order_is_the_same_in_any_chunks(isa: str, form: KVCacheQuant) -> None:
    """A prefill's last token, and the same token as a decode."""
    rows = rows_of(form, 64, torch.bfloat16)
    case = attention_case([40], [200], 4, 2, 64, torch.bfloat16)
    caches = packed(case, rows)
    whole = native.prepare(case.batch, case.table, caches[0], 4, True, rows)
    alone = native.prepare(type(case.batch).of(case.batch.slots, [1], [200]), case.table, caches[0], 4, True, rows)
    together = native.paged_attention(case.q, *caches, whole, case.scale, 0)
    assert torch.equal(native.paged_attention(case.q[-1:], *caches, alone, case.scale, 0)[0], together[-1])


def check_native(rows: QuantizedRows, heads: tuple[int, int], window: int = 0) -> None:
    case = attention_case(*MIXTURE, *heads, rows.head_dim, rows.dtype)
    k_cache, v_cache = packed(case, rows)
    step = native.prepare(case.batch, case.table, k_cache, heads[0], False, rows)
    assert isinstance(step, native.Prepared)
    close(native.paged_attention(case.q, k_cache, v_cache, step, case.scale, window), expected(case, rows, window))


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    assert actual.isfinite().all()
    limit = TOLERANCE[actual.dtype] * max(1.0, float(wanted.abs().max()))
    assert (actual.float() - wanted).abs().max() < limit
