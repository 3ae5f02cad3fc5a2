"""What one rank reads and computes, from the engine's own configuration of that rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from benchmarks.engine.parallel_cost.models import model
from blade_llm.models.sharding import shard_model
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.moe import MoESpec


@dataclass(frozen=True)
class RankWork:
    """Rank 0 of a tensor-parallel group that has all layers."""

    layers: int
    hidden: int
    vocab: int
    matrices: int
    """Weights of all matrices that multiply hidden states, experts and output matrix included."""
    others: int
    """The embedding table, norms and biases."""
    expert: int
    """Weights of one expert of one layer."""
    expert_layers: int
    experts: int
    """Of a layer; 0 without."""
    top_k: int
    head: int
    """Weights of the output matrix."""
    kv: int
    """Numbers that the KV cache has of a token."""
    attention: int
    """Multiplications and additions of a query with one token of the context, in all layers."""

    @property
    def total(self) -> int:
        """All weights."""
        return self.matrices + self.others

    def read(self, tokens: int) -> float:
        """Weights that a step of so many tokens reads: of experts those that a token chose, each as likely."""
        untouched = (1 - self.top_k / self.experts) ** tokens if self.experts else 0.0
        return self.matrices - self.expert_layers * self.experts * self.expert * untouched

    @property
    def per_token(self) -> int:
        """Weights that one token is multiplied with."""
        return self.matrices - self.expert_layers * (self.experts - self.top_k) * self.expert


@cache
def rank_work(name: str, ranks: int) -> RankWork:
    """What rank 0 of ``ranks`` has of the model. Raises UnsupportedModelError for a number that does not divide it."""
    config = shard_model(model(name), 0, ranks)
    decoder = config.decoder
    assert isinstance(decoder, DecoderSpec)
    mixtures = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, MoESpec)]
    return RankWork(
        layers=len(decoder.layers),
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        matrices=config.tensors.linear_size,
        others=config.tensors.other_size,
        expert=3 * config.hidden_size * mixtures[0].inner if mixtures else 0,
        expert_layers=len(mixtures),
        experts=mixtures[0].routing.num_experts if mixtures else 0,
        top_k=mixtures[0].routing.top_k if mixtures else 0,
        head=-(-config.vocab_size // ranks) * config.hidden_size,
        kv=config.kv.token_elements,
        attention=sum(_attention(layer.attention) for layer in decoder.layers),
    )


def _attention(spec: object) -> int:
    if isinstance(spec, LatentAttentionSpec):  # absorbed: keys are as wide as the cache's, values its first part
        return 2 * spec.num_heads * (spec.head_dim + spec.latent_dim)
    return 4 * spec.num_heads * spec.head_dim  # type: ignore[attr-defined]
