"""A decoder that transformers' own modules compute: what the engine around them must know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class ModulesSpec:
    """The counterpart of :class:`~blade_llm.spec.decoder.DecoderSpec` where no family describes the layers."""

    raw: dict[str, Any]
    """The fields of ``config.json``, of which transformers builds the modules."""
    vocab_size: int
    hidden_size: int
    max_positions: int
    """The longest sequence that the model was made for."""
    tied: bool
    """The output matrix is the embedding table."""
    num_heads: int
    """Query heads, equal in all layers."""
    windows: tuple[int, ...]
    """Of each layer: a token sees only so many, itself included; 0: all before it."""
    widest: int
    """Upper estimate of the numbers that the widest layer makes of a token."""
    softcaps: tuple[float, ...]
    """Of each layer's attention scores; 0: they stay."""
    expanded_width: ClassVar[int] = 0
    head: ClassVar[bool] = True
    bidirectional: ClassVar[bool] = False
    token_types: ClassVar[int] = 0
    classifier: ClassVar[None] = None
