"""Native argmax, Gumbel-max sampling and top-k/top-p thresholds against torch, on each instruction set they differ
by."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from engine_support.native_isa import ISAS, limited_to, needs_native

from blade_llm.kernels.argmax import native as argmax
from blade_llm.kernels.gumbel_argmax import native as gumbel
from blade_llm.kernels.gumbel_argmax import torch as gumbel_reference
from blade_llm.kernels.penalties import RowMasks
from blade_llm.kernels.top_k_top_p import native as filters
from blade_llm.kernels.top_k_top_p import torch as filters_reference

pytestmark = needs_native

NONE = float("-inf")


@pytest.fixture(params=ISAS[:3], autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with limited_to(request.param):
        torch.manual_seed(0)
        yield request.param


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("vocabulary", [1, 15, 2048, 2049, 40_007])
def test_argmax_is_the_lowest_of_equals(dtype: torch.dtype, vocabulary: int) -> None:
    logits = (torch.randn(5, vocabulary) * 3).round().to(dtype)
    logits[1] = NONE
    logits[2] = 0.0
    logits[3, vocabulary // 2] = 100.0
    values = logits.double()
    expected = [row.tolist().index(row.max().item()) for row in values]
    assert argmax.argmax(logits).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_argmax_of_broken_rows_is_the_place_of_the_first_nan(dtype: torch.dtype) -> None:
    for vocabulary in (1, 40, 5000):
        logits = torch.randn(5, vocabulary).to(dtype)
        logits[1] = float("nan")
        logits[2, vocabulary // 3 :] = float("nan")
        logits[3, vocabulary - 1] = float("nan")
        logits[4] = float("inf")
        assert argmax.argmax(logits).tolist() == logits.max(-1).indices.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masked_argmax_of_broken_rows_is_the_first_nan_that_is_allowed(dtype: torch.dtype) -> None:
    vocabulary = 5000
    logits = torch.randn(3, vocabulary).to(dtype)
    logits[0] = float("nan")
    logits[1, 3000] = logits[1, 4000] = float("nan")
    logits[2, 1] = float("nan")
    allowed = torch.zeros(3, vocabulary, dtype=torch.bool)
    allowed[:, 2::2] = True
    allowed[1, 3000] = False
    best = logits[2].float().masked_fill(~allowed[2], NONE).max(-1).indices
    padded = torch.zeros(3, -(-vocabulary // 32) * 32, dtype=torch.int64)
    padded[:, :vocabulary] = allowed
    words = (padded.view(3, -1, 32) << torch.arange(32)).sum(-1)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    found = argmax.masked_argmax(logits, RowMasks(torch.arange(3), words))
    assert found is not None
    assert found.tolist() == [2, 4000, int(best)]


def keys_of(seeds: range) -> torch.Tensor:
    return torch.tensor([gumbel_reference.noise_key(seed, 1) for seed in seeds])


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("vocabulary", [1, 7, 64, 5003])
def test_samples_the_same_tokens(scale: float, vocabulary: int, threads: None) -> None:
    rows = 24
    logits = torch.randn(rows, vocabulary) * scale
    keys, positions = keys_of(range(rows)), torch.arange(rows) * 100_003
    for thresholds in (torch.full((rows,), NONE), logits.quantile(0.9, dim=-1)):
        noise = gumbel_reference.gumbel_noise(keys.unsqueeze(1), positions.unsqueeze(1), torch.arange(vocabulary))
        noisy = (logits + noise).masked_fill(logits < thresholds.unsqueeze(1), NONE)
        expected = noisy.max(-1).indices
        assert torch.equal(gumbel.gumbel_argmax(logits, thresholds, keys, positions), expected)
        torch.set_num_threads(2)
        assert torch.equal(gumbel.gumbel_argmax(logits[:1], thresholds[:1], keys[:1], positions[:1]), expected[:1])
        torch.set_num_threads(1)


def test_a_sample_too_close_to_call_is_left_to_torch() -> None:
    """Two tokens with the same sum in fp32: torch's order decides, the lower index."""
    keys, positions = keys_of(range(1)), torch.tensor([5])
    noise = gumbel_reference.gumbel_noise(keys.unsqueeze(1), positions.unsqueeze(1), torch.arange(1000))
    logits = torch.full((1, 1000), -100.0)
    logits[0, 700], logits[0, 20] = 3.0 - noise[0, 700], 3.0 - noise[0, 20]
    none = torch.tensor([NONE])
    expected = gumbel_reference.gumbel_argmax(logits, none, keys, positions)
    assert torch.equal(gumbel.gumbel_argmax(logits, none, keys, positions), expected)
    assert gumbel._sample()(
        *(t.data_ptr() for t in (logits, none, keys, positions)), 1, 1000, torch.empty(1, dtype=torch.int64).data_ptr()
    ) == 1  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid value")
def test_samples_from_broken_and_masked_rows_as_torch_does() -> None:
    logits = torch.randn(4, 300)
    logits[0, 17] = float("nan")
    logits[1] = NONE
    logits[2, 5] = float("inf")
    arguments = torch.full((4,), NONE), keys_of(range(4)), torch.arange(4)
    assert torch.equal(gumbel.gumbel_argmax(logits, *arguments), gumbel_reference.gumbel_argmax(logits, *arguments))


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("vocabulary", [1, 50, 20_000])
@pytest.mark.parametrize("kind", ["distinct", "many equal", "many masked"])
def test_thresholds(spread: float, vocabulary: int, kind: str) -> None:
    rows = 12
    logits = torch.randn(rows, vocabulary) * spread
    if kind == "many equal":
        logits = logits.round()
    elif kind == "many masked":
        logits[:, 1::3] = NONE
    top_k = torch.randint(0, vocabulary + 2, (rows,))
    top_k[:4] = torch.tensor([0, 1, 5, 0])
    top_p = torch.rand(rows).clamp(min=1e-3)
    top_p[:4] = torch.tensor([1.0, 0.9, 1.0, 0.999])
    min_p = torch.zeros(rows)
    min_p[5:8] = 0.3
    actual = filters.top_k_top_p_thresholds(logits, top_k, top_p, min_p)
    expected = filters_reference.top_k_top_p_thresholds(logits, top_k, top_p, min_p)
    # torch sums probabilities in fp32, this in fp64: where the sum meets top_p they may differ by a few tokens.
    below, above = torch.minimum(actual, expected), torch.maximum(actual, expected)
    between = ((logits >= below.unsqueeze(1)) & (logits < above.unsqueeze(1))).sum(-1)
    mass = (logits.double().softmax(-1) * ((logits >= below.unsqueeze(1)) & (logits < above.unsqueeze(1)))).sum(-1)
    assert (mass < 3e-5).all(), between
    off = top_p == 1.0
    assert torch.equal(actual[off], expected[off])


def test_thresholds_keep_the_nucleus_exactly() -> None:
    """Against fp64: a token stays while those before it have less than top_p of the probability."""
    logits = torch.randn(6, 30_000) * 3
    top_p = torch.tensor([0.1, 0.5, 0.8, 0.9, 0.95, 0.99])
    actual = filters.top_k_top_p_thresholds(logits, torch.zeros(6, dtype=torch.int64), top_p, None)
    mass = logits.double().sort(-1, descending=True).values.softmax(-1).cumsum(-1)
    expected = (mass[:, :-1] < top_p.double().unsqueeze(1)).sum(-1) + 1
    kept = (logits >= actual.unsqueeze(1)).sum(-1)
    assert (kept - expected).abs().max() <= 1


def test_thresholds_of_broken_rows_do_no_harm() -> None:
    logits = torch.randn(4, 5000)
    logits[0] = float("nan")
    logits[1] = NONE
    logits[2, 9] = float("nan")
    top_k, top_p = torch.full((4,), 40), torch.full((4,), 0.9)
    thresholds = filters.top_k_top_p_thresholds(logits, top_k, top_p, None)
    assert thresholds[1] == NONE
    assert torch.equal(thresholds[3:], filters_reference.top_k_top_p_thresholds(logits[3:], top_k[3:], top_p[3:]))
