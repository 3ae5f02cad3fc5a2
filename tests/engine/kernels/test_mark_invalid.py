"""Tokens of rows that are no numbers are marked, by torch and by Triton alike."""

from __future__ import annotations

import pytest
import torch
from engine_support.triton_interpreter import DEVICE

from blade_llm.kernels.mark_invalid import torch as reference
from blade_llm.kernels.mark_invalid import triton as kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 5, 64, 65, 130])
def test_marks_the_tokens_whose_logits_are_nan(rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, 37, generator=generator).to(dtype).to(DEVICE)
    tokens = torch.randint(37, (rows,), generator=generator).to(DEVICE)
    logits[::3] = float("nan")
    logits[1::3, 0] = float("inf")
    expected = tokens.clone()
    expected[::3] = -1
    for implementation in (reference, kernel):
        before = tokens.clone()
        assert torch.equal(implementation.mark_invalid(logits, tokens), expected)
        assert torch.equal(tokens, before), "the device computes with a token of the vocabulary"
