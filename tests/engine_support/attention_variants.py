"""Options of attention that every implementation is tested with, and batches to test them on."""

from __future__ import annotations

import torch

from blade_llm.kernels.paged_attention import AttentionVariant

MIXED = ([1, 1, 21, 5, 1], [140, 1, 93, 5, 17])
"""Decodes, then a chunk behind a prefix, a whole prompt, and a decode out of order."""
WHOLE = ([30, 1, 75], [30, 1, 75])
"""Whole sequences, as encoders compute them."""
NAMES = ("softcap", "alibi", "sinks", "chunk", "bidirectional", "bidirectional_sinks", "all")
WIDTHS = [(96, 64), (192, 128), (64, 80), (40, 24), (256, 256), (80, 80)]
"""Dimensions of keys and values."""


def variant_of(name: str, heads: int, device: str = "cpu") -> AttentionVariant:
    """Numbers large enough to change every result."""
    slopes = torch.tensor([2.0 ** (-head - 2) for head in range(heads)], device=device)
    sinks = torch.linspace(-1.0, 3.0, heads, device=device)
    return {
        "softcap": AttentionVariant(softcap=1.5),
        "alibi": AttentionVariant(slopes=slopes),
        "sinks": AttentionVariant(sinks=sinks),
        "chunk": AttentionVariant(chunk=32),
        "bidirectional": AttentionVariant(causal=False),
        "bidirectional_sinks": AttentionVariant(causal=False, sinks=sinks, softcap=2.0),
        "all": AttentionVariant(softcap=2.0, slopes=slopes, sinks=sinks, chunk=48),
    }[name]


def batch_of(name: str) -> tuple[list[int], list[int]]:
    """Query and sequence lengths to test it with."""
    return WHOLE if name.startswith("bidirectional") else MIXED
