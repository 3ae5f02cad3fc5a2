"""Options of attention, and keys and values of different widths, in the Triton kernels: launched as prefill, as split
decode, in a graph, and deterministic."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from engine_support.attention_cases import AttentionCase, attention_case
from engine_support.attention_variants import MIXED, NAMES, WIDTHS, batch_of, variant_of
from engine_support.pairwise import in_turn
from engine_support.triton_interpreter import DEVICE
from engine_support.triton_mixed_graph import in_graph

import engine_support.triton_products  # noqa: F401  isort: skip
from blade_llm.kernels.paged_attention import PLAIN, AttentionVariant
from blade_llm.kernels.paged_attention import triton as kernels
from blade_llm.kernels.paged_attention.triton_forms import config_of, head_splits, widths_of

TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 3e-2}


def case_of(*args: object, **options: object) -> AttentionCase:
    return attention_case(*args, device=str(DEVICE), **options)  # type: ignore[arg-type]


def attend(
    case: AttentionCase,
    window: int = 0,
    variant: AttentionVariant = PLAIN,
    deterministic: bool = False,
    segments: int = 0,
) -> torch.Tensor:
    step = kernels.prepare(case.batch, case.table, case.k_cache, case.q.shape[1], deterministic)
    if segments:
        step = dataclasses.replace(step, segments=segments)
    return kernels.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale, window, variant)


def check(case: AttentionCase, actual: torch.Tensor) -> None:
    limit = TOLERANCE[case.q.dtype] * max(1.0, float(case.expected.abs().max()))
    assert (actual.double().cpu() - case.expected).abs().max() < limit


@pytest.mark.parametrize(
    ("name", "window"),
    [
        pytest.param(name, window, marks=[] if window == 0 or name == "all" else pytest.mark.soak)
        for name in NAMES
        for window in (0, 50)
    ],
)
def test_options(name: str, window: int) -> None:
    if window and name.startswith("bidirectional"):
        pytest.skip("refused together")
    variant = variant_of(name, 4, str(DEVICE))
    case = case_of(*batch_of(name), 4, 2, 32, torch.float32, poison=1e4, window=window, variant=variant)
    for segments in (1, 4):
        check(case, attend(case, window, variant, segments=segments))
    check(case, attend(case, window, variant, deterministic=True))
    check(case, in_graph(case, 7, 130, window, variant))


@pytest.mark.parametrize("name", ["softcap", "all"])
def test_options_in_bf16(name: str) -> None:
    variant = variant_of(name, 4, str(DEVICE))
    case = case_of(*MIXED, 4, 2, 64, torch.bfloat16, variant=variant)
    check(case, attend(case, 0, variant))


def test_sequences_without_tokens_beside_sinks() -> None:
    variant = variant_of("sinks", 4, str(DEVICE))
    case = case_of([1, 1, 0, 20, 0], [90, 0, 0, 60, 33], 4, 2, 32, torch.float32, variant=variant)
    for segments in (1, 4):
        check(case, attend(case, 0, variant, segments=segments))


@pytest.mark.parametrize(
    ("head_dim", "v_dim", "dtype"), in_turn([pytest.param(*each) for each in WIDTHS], list(TOLERANCE))
)
def test_widths_of_keys_and_values(head_dim: int, v_dim: int, dtype: torch.dtype) -> None:
    case = case_of(*MIXED, 4, 2, head_dim, dtype, poison=float("nan"), v_dim=v_dim)
    for segments in (1, 4):
        check(case, attend(case, segments=segments))


@pytest.mark.parametrize(
    ("heads", "head_dim", "v_dim"), [(16, 576, 512), (48, 288, 256), (4, 144, 128), (5, 40, 24), (8, 576, 576)]
)
def test_values_that_are_part_of_keys(heads: int, head_dim: int, v_dim: int) -> None:
    """The latent vectors of DeepSeek's attention, which all heads share."""
    case = case_of([1, 1, 5], [200, 3, 40], heads, 1, head_dim, torch.float32, v_dim=v_dim, latent=True, poison=1e4)
    check(case, attend(case))
    check(case, attend(case, deterministic=True))
    check(case, in_graph(case, 4, 10))


def test_latent_values_are_not_loaded_again() -> None:
    k_cache = torch.empty(2, 16, 1, 576, dtype=torch.bfloat16)
    widths = widths_of(k_cache, k_cache[..., :512])
    assert (widths.padded, widths.rest, widths.shared, widths.v_loaded) == (512, 64, True, 0)
    assert not widths_of(k_cache, k_cache[..., :512].contiguous()).shared
    assert not widths_of(k_cache, k_cache).shared


def test_heads_that_share_wide_keys_are_divided_among_programs() -> None:
    """So that a program's outputs fit in its registers."""
    assert [head_splits(576, group) for group in (1, 16, 24, 128)] == [1, 1, 2, 8]
    assert [head_splits(dim, 128) for dim in (64, 256)] == [1, 1]
    assert config_of(576, 128, 2, 227 << 10, "decode", 0).rows == 16


def test_warm_runs_every_form() -> None:
    variant = variant_of("all", 4, str(DEVICE))
    case = case_of([1], [20], 4, 2, 48, torch.float32, v_dim=32)
    before = case.v_cache.clone()
    kernels.warm(case.k_cache, case.table, 4, (0, 8), False, variant, case.v_cache)
    assert torch.equal(case.v_cache, before)


def test_options_that_do_not_go_together_are_refused() -> None:
    case = case_of([1], [20], 4, 2, 64, torch.float32)
    with pytest.raises(ValueError, match="no sliding window"):
        attend(case, 5, AttentionVariant(causal=False))
