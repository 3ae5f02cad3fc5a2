"""Multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from blade_llm.spec.norm import NormSpec
from blade_llm.spec.rope import RopeSpec

EXPANDED_CONTEXT: Final = 8192
"""Tokens of the longest sequence whose keys and values are made anew for a prefill, which bounds the memory for it."""


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """Keys and values of all heads are made of one latent vector a token (MLA: DeepSeek-V2, arXiv 2405.04434, 2.1).

    The KV cache holds that vector and one rotated key that all heads share, nothing else. The matrix that would make
    keys of latent vectors is multiplied into the queries, and the one for values into the result ("absorbed"), which
    leaves attention of ``num_heads`` queries over one head of keys, ``head_dim`` wide, whose first ``latent_dim``
    elements are the values.
    """

    num_heads: int
    latent_dim: int
    """``kv_lora_rank``."""
    nope_dim: int
    """Of each head, dimensions without position (``qk_nope_head_dim``)."""
    rope_dim: int
    """Of each head, dimensions that rotate (``qk_rope_head_dim``)."""
    value_dim: int
    """``v_head_dim``."""
    scale: float
    """Of the products of queries and keys."""
    rope: RopeSpec
    latent_norm: NormSpec
    """Of latent vectors, those of queries too."""
    query_rank: int = 0
    """Width of the latent vector that queries are made of (``q_lora_rank``); 0: they are made of hidden states."""
    down_bias: bool = False
    """Of what makes latent vectors; only with ``query_rank``."""
    output_bias: bool = False

    num_kv_heads: ClassVar[int] = 1
    window: ClassVar[int] = 0
    softcap: ClassVar[float] = 0.0
    alibi_slopes: ClassVar[tuple[float, ...]] = ()
    head_norm: ClassVar[None] = None
    head_norm_whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.rope_dim % 2:
            raise ValueError(f"qk_rope_head_dim {self.rope_dim} is odd; pairs of dimensions rotate")
        if self.down_bias and not self.query_rank:
            raise ValueError("a bias of latent vectors goes with a latent vector of queries")

    @property
    def head_dim(self) -> int:
        """Width of a cached key: the latent vector and the rotated key."""
        return self.latent_dim + self.rope_dim

    @property
    def rotary_width(self) -> int:
        """Dimensions that the tables of angles cover."""
        return self.rope_dim

    @property
    def query_size(self) -> int:
        """All queries of a token, before the matrix of keys is multiplied into them."""
        return self.num_heads * (self.nope_dim + self.rope_dim)

    @property
    def down_size(self) -> int:
        """Outputs of the first projection: the queries or their latent vector, latent vector, shared key."""
        return (self.query_rank or self.query_size) + self.head_dim

    @property
    def width(self) -> int:
        """Numbers that attention makes of a token: projections, queries over latent vectors, results, values."""
        over_latents = self.num_heads * (self.head_dim + 2 * self.latent_dim)
        return self.down_size + self.query_size + over_latents + self.num_heads * self.value_dim

    @property
    def expanded_width(self) -> int:
        """Numbers that each token of a context takes in a prefill that expands it: keys, values, and their parts."""
        return self.head_dim + self.num_heads * (2 * self.nope_dim + self.rope_dim + 2 * self.value_dim)
