"""Native penalties, bias and mask, and the masked argmax, against torch: the same bits on each instruction set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from engine_support.native_isa import ISAS, limited_to, needs_native
from engine_support.token_masks import bits_of

from blade_llm.kernels.argmax import native as argmax
from blade_llm.kernels.penalties import RowMasks, SparseBias, native
from blade_llm.kernels.penalties import torch as reference

pytestmark = needs_native

NONE = float("-inf")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])


@pytest.fixture(params=ISAS[:3], autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    threads = torch.get_num_threads()
    with limited_to(request.param):
        torch.manual_seed(0)
        yield request.param
    torch.set_num_threads(threads)


def masks_for(rows: int, vocabulary: int, share: float = 0.3) -> RowMasks:
    """Every third row has none; of the others one allows a single token, one all, the rest stretches and samples."""
    index = torch.arange(rows)
    index[::3] = -1
    index[index >= 0] = torch.randperm(int((index >= 0).sum()))
    allowed = torch.rand(rows, vocabulary) < share
    allowed[:, vocabulary // 4 : vocabulary // 2] = False
    allowed[0] = False
    allowed[0, vocabulary // 2] = True
    allowed[1:2] = True
    return RowMasks(index, bits_of(allowed))


def arguments_for(rows: int, vocabulary: int, dtype: torch.dtype, longest: int = 300) -> list[torch.Tensor]:
    """The operator's first arguments: a third of the rows neutral, tokens that repeat, rows of the table out of order,
    penalties as a slice of a wider table."""
    penalties = torch.rand(rows, 6)
    penalties[:, 3:] = torch.stack([torch.rand(rows) + 0.5, torch.rand(rows) - 0.5, torch.rand(rows) * 2 - 1], 1)
    penalties[1::3, 3:] = torch.tensor([1.0, 0.0, 0.0])
    few = torch.randint(vocabulary, (max(2, longest // 5),))
    table = few[torch.randint(len(few), (rows + 2, longest))].int()
    lengths = torch.randint(1, longest + 1, (rows,))
    prompts = (lengths * torch.rand(rows)).long()
    logits = (torch.randn(rows, vocabulary) * 4).to(dtype)
    return [logits, table, torch.randperm(rows + 2)[:rows], prompts, lengths, penalties[:, 3:]]


def bias_for(rows: int, vocabulary: int) -> SparseBias:
    """None for the first row, few entries for the others, one of them forbidding."""
    tokens = [torch.randperm(vocabulary)[: min(vocabulary, 9) if row else 0] for row in range(rows)]
    values = [torch.randn(len(each), dtype=torch.float64) * 50 for each in tokens]
    values[-1][:1] = NONE
    starts = torch.tensor([0, *(len(each) for each in tokens)]).cumsum(0)
    return SparseBias(starts, torch.cat(tokens), torch.cat(values))


@DTYPES
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocabulary", [1, 31, 64, 1000, 20_011])
def test_the_bits_of_torch(dtype: torch.dtype, vocabulary: int, threads: int) -> None:
    torch.set_num_threads(threads)
    for rows in (1, 2, 7):
        arguments = arguments_for(rows, vocabulary, dtype)
        before = arguments[0].clone()
        bias, masks = bias_for(rows, vocabulary), masks_for(rows, vocabulary)
        for more in ((None, None), (bias, None), (None, masks), (bias, masks)):
            result = native.apply_penalties(*arguments, *more)
            assert result.dtype == torch.float32
            assert torch.equal(result, reference.apply_penalties(*arguments, *more))
        assert torch.equal(arguments[0], before)


def test_one_row_on_two_threads_of_a_real_vocabulary() -> None:
    torch.set_num_threads(2)
    arguments = arguments_for(1, 151_936, torch.bfloat16, longest=4000)
    arguments[-1][0] = torch.tensor([1.3, 0.2, 0.1])
    masks = RowMasks(torch.zeros(1, dtype=torch.int64), bits_of(torch.rand(1, 151_936) < 0.5))
    expected = reference.apply_penalties(*arguments, None, masks)
    for _ in range(2):  # counts are left clean
        assert torch.equal(native.apply_penalties(*arguments, None, masks), expected)


def test_a_bias_beyond_the_vocabulary_is_ignored() -> None:
    arguments = arguments_for(2, 50, torch.float32)
    tokens, values = torch.tensor([50, 1 << 40, -1]), torch.ones(3, dtype=torch.float64)
    bias = SparseBias(torch.tensor([0, 2, 3]), tokens, values)
    assert torch.equal(native.apply_penalties(*arguments, bias), native.apply_penalties(*arguments))


def test_no_rows_at_all() -> None:
    arguments = arguments_for(1, 40, torch.float32)
    nothing = [arguments[0][:0], arguments[1], *(part[:0] for part in arguments[2:])]
    assert native.apply_penalties(*nothing).shape == (0, 40)


@DTYPES
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocabulary", [1, 33, 2048, 40_007])
def test_masked_argmax_is_the_lowest_of_equals(dtype: torch.dtype, vocabulary: int, threads: int) -> None:
    torch.set_num_threads(threads)
    logits = (torch.randn(9, vocabulary) * 3).round().to(dtype)
    logits[4] = NONE
    logits[5] = 0.0
    masks = masks_for(9, vocabulary, share=0.05)
    tokens = argmax.masked_argmax(logits, masks)
    if dtype == torch.float16:
        assert tokens is None
        return
    assert tokens is not None
    masked = reference.apply_penalties(
        logits, torch.zeros(1, 1).int(), torch.zeros(9).long(), *(torch.zeros(9).long(),) * 2,
        torch.tensor([1.0, 0.0, 0.0]).repeat(9, 1), None, masks,
    )  # fmt: skip
    expected = masked.max(-1).indices
    possible = masked.max(-1).values > NONE
    assert torch.equal(tokens[possible], expected[possible])
    allowed = (masks.words.unsqueeze(-1) >> torch.arange(32) & 1).flatten(1).bool()
    for row, (token, mask) in enumerate(zip(tokens.tolist(), masks.index.tolist(), strict=True)):
        assert mask < 0 or allowed[mask, token] or not allowed[mask, :vocabulary].any(), row


def test_masked_argmax_of_broken_rows_is_an_allowed_token() -> None:
    logits = torch.full((2, 5000), float("nan"))
    logits[1, 4321] = 1.0
    allowed = torch.zeros(2, 5000, dtype=torch.bool)
    allowed[:, [70, 4321]] = True
    tokens = argmax.masked_argmax(logits, RowMasks(torch.arange(2), bits_of(allowed)))
    assert tokens is not None
    assert tokens.tolist() == [70, 70], "the first that is no number"
