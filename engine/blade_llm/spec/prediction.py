"""A head that predicts tokens from a model's hidden states, to draft for it: one decoder layer over what joins each
token's embedding with the state of the token before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from blade_llm.spec.norm import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSpec:
    """How a head joins embeddings and states, and what it passes on.

    ``mtp``: multi-token prediction (Gloeckle et al., arXiv 2404.19737; DeepSeek-V3, arXiv 2412.19437, section 2.2):
    both are normalised and projected into one, the input of the layer. ``eagle3``: EAGLE-3 (Li et al., arXiv
    2503.01840): both are normalised and the input of the layer's attention, side by side; the state alone is its
    residual.
    """

    kind: Literal["mtp", "eagle3"]
    norm: NormSpec
    """Of embeddings and of states, each with weights of its own."""
    after: tuple[int, ...] = ()
    """The states are those after so many layers of the model, projected into one; empty: after its last norm."""
    states_first: bool = False
    """``mtp``: the state comes before the embedding where they are joined."""
    zero_first: bool = False
    """``mtp``: the embedding beside the first state is all zero."""
    passes_normalised: bool = False
    """Its own states, from which it goes on, are those after its last norm."""
    normalised_residual: bool = False
    """``eagle3``: the residual is the normalised state."""
    vocab_size: int = 0
    """Tokens that it can draft, listed in the checkpoint; 0: all, with the model's output matrix."""
