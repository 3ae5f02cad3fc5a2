"""What a layer's attention has beside a scale and a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionVariant:
    """Options of one layer's attention. Made once with the layer: implementations keep what they derive from it."""

    softcap: float = 0.0
    """Scaled scores become ``softcap * tanh(score / softcap)`` (Gemma 2, arXiv 2408.00118); 0: they stay."""
    slopes: Tensor | None = None
    """[heads] fp32: ``slope * (key position - query position)`` is added to the scores (ALiBi: Press et al.,
    arXiv 2108.12409)."""
    sinks: Tensor | None = None
    """[heads] fp32: a score of each head that takes its share of the softmax and has a value of zero (attention sinks:
    Xiao et al., arXiv 2309.17453, learned as in gpt-oss)."""
    chunk: int = 0
    """A token sees only the tokens before it whose position divided by ``chunk`` gives the same whole number (Llama 4's
    local layers); 0: all."""
    causal: bool = True
    """False: each new token sees its whole sequence, also what comes after it (encoders)."""

    def __post_init__(self) -> None:
        if self.softcap < 0 or self.chunk < 0:
            raise ValueError(f"softcap {self.softcap} and chunk {self.chunk} must not be negative")
        if not self.causal and (self.slopes is not None or self.chunk):
            raise ValueError("bidirectional attention has no ALiBi slopes and no chunks here")

    def check(self, heads: int, window: int, branches: bool = False) -> None:
        """Raise :class:`ValueError` where this does not go with so many query heads, with a window, or with tokens that
        branch."""
        if branches and (self.slopes is not None or self.chunk or not self.causal):
            raise ValueError("tokens that branch have no ALiBi slopes, no chunks, and causal attention here")
        if not self.causal and window:
            raise ValueError("bidirectional attention has no sliding window here")
        for name, terms in (("slopes", self.slopes), ("sinks", self.sinks)):
            if terms is not None and (terms.shape != (heads,) or terms.dtype != torch.float32):
                raise ValueError(f"{name} must be [{heads}] fp32, not {list(terms.shape)} {terms.dtype}")


PLAIN: Final = AttentionVariant()
"""Causal attention without further options."""
