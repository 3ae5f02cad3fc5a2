"""Upper bounds of speed from data sheets: a step takes at least as long as memory takes to be read, or arithmetic to be
done (the roofline model: Williams, Waterman & Patterson, CACM 52(4), 2009).

Real engines reach a part of it, which depends on batch, context and interconnect; between configurations the ratio is
what tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from blade_llm.cache.sizing import kv_token_bytes
from blade_llm.check.rank_memory import RankMemory
from blade_llm.fit.gpus import GpuModel
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTYPE_BYTES
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.moe import MoESpec


@dataclass(frozen=True, slots=True)
class Roofline:
    """One rank on one GPU; ranks of a stage work at the same time on the same tokens."""

    rank: RankMemory
    gpu: GpuModel

    def decode_seconds(self, batch: int, context: int) -> float:
        """Of a step in which ``batch`` requests with ``context`` tokens each get another one."""
        part = self.rank.part
        experts = expert_share(part)
        weights = self._weights_read * (1.0 - experts + experts * experts_touched(part, batch))
        keys_and_values = batch * context * kv_token_bytes(part, self.rank.dtype)
        return max((weights + keys_and_values) / self.gpu.bandwidth, batch * self._flops_of_token / self.gpu.flops)

    def prefill_seconds(self, tokens: int) -> float:
        """Of a prompt's ``tokens``, attention left aside."""
        return max(tokens * self._flops_of_token / self.gpu.flops, self._weights_read / self.gpu.bandwidth)

    @property
    def _weights_read(self) -> int:
        """Bytes of weights that a step reads at most; of the embedding table it takes a few rows."""
        part = self.rank.part
        table = part.tensors.other_size * DTYPE_BYTES[self.rank.dtype]
        return max(0, self.rank.weights - (0 if part.decoder.tied else table))

    @property
    def _flops_of_token(self) -> float:
        """A multiplication and an addition for each weight that a token meets."""
        part = self.rank.part
        experts = expert_share(part)
        head = part.vocab_size * part.hidden_size if part.decoder.tied and part.ends else 0
        if part.shard is not None:
            head //= part.shard.size
        return 2.0 * (linear_weights(part) * (1.0 - experts + experts * experts_touched(part, 1)) + head)


def linear_weights(part: ModelConfig) -> int:
    """Elements of the weights of all linear layers, however they are kept."""
    return sum(each.wanted * each.wanted_inputs for each in part.tensors.linear_parts())


def expert_share(part: ModelConfig) -> float:
    """Share of ``linear_weights`` that routed experts have."""
    experts = sum(
        each.wanted * each.wanted_inputs
        for place, linear in part.tensors.linears.items()
        if ".experts." in place
        for each in linear.parts
    )
    return experts / max(1, linear_weights(part))


def experts_touched(part: ModelConfig, tokens: int) -> float:
    """Share of the experts that at least one of ``tokens`` goes to, if all are equally likely."""
    if not isinstance(part.decoder, DecoderSpec):
        return 1.0
    routing = next((layer.mlp.routing for layer in part.decoder.layers if isinstance(layer.mlp, MoESpec)), None)
    return 1.0 if routing is None else 1.0 - (1.0 - routing.top_k / routing.num_experts) ** tokens
