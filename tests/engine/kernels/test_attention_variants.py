"""Options of attention, and keys and values of different widths, against attention written out: torch and C++."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from engine_support.attention_cases import AttentionCase, attention_case
from engine_support.attention_variants import MIXED, NAMES, WIDTHS, batch_of, variant_of
from engine_support.native_isa import ISAS, limited_to, needs_native

from blade_llm.kernels.paged_attention import PLAIN, AttentionVariant, native
from blade_llm.kernels.paged_attention import torch as reference

TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 0.025}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
Attend = Callable[[AttentionCase, int, AttentionVariant], torch.Tensor]


def with_torch(case: AttentionCase, window: int = 0, variant: AttentionVariant = PLAIN) -> torch.Tensor:
    step = reference.prepare(case.batch, case.table, case.k_cache, case.q.shape[1])
    return reference.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale, window, variant)


def with_native(case: AttentionCase, window: int = 0, variant: AttentionVariant = PLAIN) -> torch.Tensor:
    step = native.prepare(case.batch, case.table, case.k_cache, case.q.shape[1], False)
    assert isinstance(step, native.Prepared)
    return native.paged_attention(case.q, case.k_cache, case.v_cache, step, case.scale, window, variant)


@pytest.fixture(params=["torch", *(pytest.param(isa, marks=needs_native) for isa in ISAS)])
def attend(request: pytest.FixtureRequest) -> Iterator[Attend]:
    """The torch implementation, and the native one on each instruction set."""
    if request.param == "torch":
        yield with_torch
        return
    with limited_to(request.param):
        yield with_native


def check(actual: torch.Tensor, case: AttentionCase) -> None:
    assert actual.shape == case.expected.shape
    limit = TOLERANCE[case.q.dtype] * max(1.0, float(case.expected.abs().max()))
    assert (actual.double() - case.expected).abs().max() < limit


@DTYPES
@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("name", NAMES)
def test_options(attend: Attend, name: str, window: int, dtype: torch.dtype) -> None:
    if window and name.startswith("bidirectional"):
        pytest.skip("refused together")
    variant = variant_of(name, 6)
    case = attention_case(*batch_of(name), 6, 2, 64, dtype, poison=1e4, window=window, variant=variant)
    check(attend(case, window, variant), case)
    plain = attention_case(*batch_of(name), 6, 2, 64, dtype, window=window)
    assert (plain.expected - case.expected).abs().max() > 0.2  # the option matters


@DTYPES
@pytest.mark.parametrize("name", ["softcap", "alibi", "sinks", "chunk"])
def test_options_of_decodes_in_parts(attend: Attend, name: str, dtype: torch.dtype) -> None:
    """Long contexts are divided among threads; a chunk may begin inside a part."""
    variant = AttentionVariant(chunk=700) if name == "chunk" else variant_of(name, 7)
    case = attention_case([1, 1, 1, 1], [1500, 3, 700, 701], 7, 1, 64, dtype, variant=variant)
    check(attend(case, 0, variant), case)


def test_decodes_of_equal_length(attend: Attend) -> None:
    """A step that is one group in torch."""
    for name in NAMES[:4]:
        variant = variant_of(name, 4)
        case = attention_case([1] * 3, [70] * 3, 4, 2, 32, torch.float32, variant=variant)
        check(attend(case, 0, variant), case)


def test_prefills_of_several_chunks(attend: Attend) -> None:
    for name in NAMES:
        variant = variant_of(name, 4)
        lengths = [600] if name.startswith("bidirectional") else [650]
        case = attention_case([600], lengths, 4, 2, 32, torch.float32, variant=variant)
        check(attend(case, 0, variant), case)


@DTYPES
@pytest.mark.parametrize(("head_dim", "v_dim"), WIDTHS)
def test_widths_of_keys_and_values(attend: Attend, head_dim: int, v_dim: int, dtype: torch.dtype) -> None:
    case = attention_case(*MIXED, 6, 2, head_dim, dtype, poison=1e4, v_dim=v_dim)
    check(attend(case, 0, PLAIN), case)


@DTYPES
@pytest.mark.parametrize(("heads", "head_dim", "v_dim"), [(16, 576, 512), (128, 80, 64), (5, 40, 24)])
def test_values_that_are_part_of_keys(
    attend: Attend, heads: int, head_dim: int, v_dim: int, dtype: torch.dtype
) -> None:
    """The latent vectors of DeepSeek's attention, which all heads share."""
    case = attention_case([1, 1, 9], [600, 3, 40], heads, 1, head_dim, dtype, v_dim=v_dim, latent=True, poison=1e4)
    check(attend(case, 0, PLAIN), case)


@needs_native
@pytest.mark.parametrize("share", [65, 128, 256])
def test_a_decode_of_many_heads_is_divided_as_one_of_few(share: int) -> None:
    case = attention_case([1], [1300], share, 1, 32, torch.float32)
    check(with_native(case), case)


@needs_native
def test_an_empty_sequence_with_a_sink_gets_zeros() -> None:
    variant = variant_of("sinks", 4)
    case = attention_case([1, 1], [0, 20], 4, 2, 64, torch.float32, variant=variant)
    actual = with_native(case, 0, variant)
    check(actual, case)


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match="no ALiBi slopes"):
        AttentionVariant(causal=False, slopes=torch.ones(2))
    with pytest.raises(ValueError, match="must not be negative"):
        AttentionVariant(softcap=-1.0)
    case = attention_case([1], [20], 4, 2, 64, torch.float32)
    for attend in (with_torch, with_native):
        with pytest.raises(ValueError, match="no sliding window"):
            attend(case, 5, AttentionVariant(causal=False))
        with pytest.raises(ValueError, match=r"slopes must be \[4\] fp32"):
            attend(case, 0, AttentionVariant(slopes=torch.ones(3)))
    step = reference.prepare(case.batch, case.table, case.k_cache, 4, deterministic=True)
    with pytest.raises(ValueError, match="no deterministic form"):
        reference.paged_attention(case.q, case.k_cache, case.v_cache, step, 1.0, 0, AttentionVariant(causal=False))
