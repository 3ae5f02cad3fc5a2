"""Llama 2 and 3 (Touvron et al., arXiv 2307.09288; Llama team, arXiv 2407.21783): pre-norm decoder with rotary
embedding, grouped-query attention and gated MLP. Families that differ only in details they configure build on it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.decoder_layers import fuse
from blade_llm.kernels.decoder_layers.weights import LayerWeights
from blade_llm.layers.attention import Attention
from blade_llm.layers.linear import Linear, LinearOptions
from blade_llm.layers.mlp import GatedMLP
from blade_llm.layers.norm import RMSNorm
from blade_llm.layers.rope import RotaryTable
from blade_llm.layers.step import Rotation, StepMetadata
from blade_llm.models.config import ModelConfig
from blade_llm.models.weight_source import WeightSource


class LlamaLayer:
    """One decoder layer."""

    def __init__(self, config: ModelConfig, weights: WeightSource, index: int, options: LinearOptions) -> None:
        prefix = f"model.layers.{index}"

        def linear(module: str, parts: list[str], bias: bool) -> Linear:
            names = [f"{prefix}.{module}.{part}" for part in parts]
            return Linear(
                weights.stacked([f"{name}.weight" for name in names]),
                weights.stacked([f"{name}.bias" for name in names]) if bias else None,
                options,
            )

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.tensor(f"{prefix}.{name}.weight"), config.rms_norm_eps)

        self.input_norm = norm("input_layernorm")
        self.attention = Attention(
            index,
            linear("self_attn", ["q_proj", "k_proj", "v_proj"], config.attention_bias),
            linear("self_attn", ["o_proj"], config.output_bias),
            config.num_heads,
            config.head_dim,
        )
        self.post_attention_norm = norm("post_attention_layernorm")
        self.mlp = GatedMLP(
            linear("mlp", ["gate_proj", "up_proj"], config.mlp_bias), linear("mlp", ["down_proj"], config.mlp_bias)
        )

    @property
    def weights(self) -> LayerWeights:
        """The weights of the layer, for the fused operator."""
        attention, mlp = self.attention, self.mlp
        return LayerWeights(
            self.input_norm.weight,
            attention.qkv.packed,
            attention.output.packed,
            self.post_attention_norm.weight,
            mlp.gate_up.packed,
            mlp.down.packed,
        )

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: Rotation,
        step: StepMetadata,
        selected: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``x`` is what the previous layer adds to ``residual``; returns both again. [tokens, hidden] each.

        ``selected``: [selected] int64, the only tokens to go on with after attention.
        """
        x, residual = (self.input_norm(x), x) if residual is None else self.input_norm.add(x, residual)
        x = self.attention(x, rotation, step, selected)
        if selected is not None:
            residual = residual.index_select(0, selected)
        x, residual = self.post_attention_norm.add(x, residual)
        return self.mlp(x), residual


class Llama:
    """Token ids in, hidden states out; :meth:`logits` of those that are sampled."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, max_positions: int, options: LinearOptions | None = None
    ) -> None:
        """``max_positions``: longest sequence, for the table of rotary angles."""
        options = options or LinearOptions()
        self.embedding = weights.tensor("model.embed_tokens.weight")
        self.rotary = RotaryTable(
            config.rope.theta, config.rope.scaling, config.head_dim, max_positions, self.embedding.device
        )
        self.layers = [LlamaLayer(config, weights, index, options) for index in range(config.num_layers)]
        self.fused = fuse(
            [layer.weights for layer in self.layers],
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            inner=config.intermediate_size,
            eps=config.rms_norm_eps,
        )
        """All layers in one call; without it they compute the same one by one."""
        self.norm = RMSNorm(weights.tensor("model.norm.weight"), config.rms_norm_eps)
        tied = config.tie_word_embeddings
        self.head = Linear(self.embedding if tied else weights.tensor("lm_head.weight"), None, options)
        self.nbytes = self._count_bytes(shares_head=tied and self.head.packed is None)

    def __call__(self, token_ids: Tensor, step: StepMetadata, selected: Tensor | None) -> Tensor:
        """Normalised hidden states, [selected, hidden].

        ``token_ids``: [tokens] int. ``selected``: [selected] int64, the tokens whose hidden states are wanted; None
        for all of them.
        """
        x = F.embedding(token_ids, self.embedding)
        residual: Tensor | None = None
        rotation = self.rotary(step.positions)
        last = self.layers[-1]
        done = len(self.layers) - (selected is not None)  # the last layer goes on with few of a prefill's tokens
        if self.fused is not None and done:
            x, residual = self.fused(
                x, rotation.cos, rotation.sin, step.slot_mapping, step.attention, step.kv_cache, layers=done
            )
        else:
            done = 0
        for layer in self.layers[done:]:
            x, residual = layer(x, residual, rotation, step, selected if layer is last else None)
        assert residual is not None
        return self.norm.add(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, vocabulary]."""
        return self.head(hidden)

    def _count_bytes(self, shares_head: bool) -> int:
        linears = [
            linear
            for layer in self.layers
            for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down)
        ]
        tables: list[torch.Tensor] = [self.embedding, self.rotary.cos, self.rotary.sin]
        head = 0 if shares_head else self.head.nbytes
        return sum(linear.nbytes for linear in linears) + sum(table.nbytes for table in tables) + head
