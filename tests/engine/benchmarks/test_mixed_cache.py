"""Attention over what a cache keeps, as the comparison of mixed caches computes it."""

from __future__ import annotations

import pytest
import torch
from benchmarks.quantization.mixed_cache import CONTEXT, Attention, Form, kept
from torch.nn.functional import scaled_dot_product_attention

TOKENS, SCALE = 40, 0.125


def attend(form: Form, gain: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, and the query, keys and values that it is of."""
    torch.manual_seed(0)
    query = torch.randn(1, 4, TOKENS, 64)
    key, value = torch.randn(2, 1, 2, TOKENS, 64)
    attention = Attention()
    attention.form, attention.gain = form, gain
    out, _ = attention(None, query, key, value, None, SCALE)
    return out.transpose(1, 2), query, key, value


@pytest.mark.parametrize("gain", [1.0, 8.0])
def test_without_quantisation_it_is_attention(gain: float) -> None:
    out, query, key, value = attend(Form("", None, None), gain)
    wanted = scaled_dot_product_attention(query, key, value, is_causal=True, scale=SCALE, enable_gqa=True)
    torch.testing.assert_close(out, wanted)


def test_a_query_sees_the_first_tokens_and_its_own_window_in_more_bits() -> None:
    """What it sees of each key and value, one query at a time."""
    out, query, key, value = attend(Form("", "int4", "int4", "int8", first=4, window=16))
    for place in range(TOKENS):
        high = torch.tensor([at < 4 or at // 16 == place // 16 for at in range(place + 1)]).view(-1, 1)
        seen = [
            torch.where(high, kept(rows, "int8")[:, :, : place + 1], kept(rows, "int4")[:, :, : place + 1])
            for rows in (key, value)
        ]
        alone = scaled_dot_product_attention(query[:, :, place : place + 1], *seen, scale=SCALE, enable_gqa=True)
        torch.testing.assert_close(out[:, :, place : place + 1], alone)


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        (Form("", None, None), 256.0),
        (Form("", "int8", "int4"), 100.0),
        (Form("", "int4", "int4", "int8", first=16, window=64), 68 + 64 * 48 / CONTEXT),
    ],
)
def test_bytes_of_a_token(form: Form, wanted: float) -> None:
    assert form.bytes_of(64) == wanted
