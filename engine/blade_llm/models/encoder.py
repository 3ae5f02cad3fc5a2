"""The encoder: bidirectional layers with their norms after them, from the same specs as the decoder."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from blade_llm.layers.bidirectional_attention import BidirectionalAttention
from blade_llm.layers.linear import Linear
from blade_llm.layers.mlp import MLP
from blade_llm.layers.step import StepMetadata
from blade_llm.models.classifier import Classifier
from blade_llm.models.decoder_layer import build_norm
from blade_llm.models.linear_method import CheckpointWeights, LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.mlp import MLPSpec


class EncoderLayer:
    """``x = norm(x + attention(x))``, then ``x = norm(x + mlp(x))``."""

    def __init__(self, spec: LayerSpec, parameters: Parameters, place: str, method: LinearMethod) -> None:
        assert spec.attention_norm is not None
        assert spec.mlp_norm is not None
        assert isinstance(spec.mlp, MLPSpec), "encoders have no experts"
        plain = LayerSpec(spec.attention, spec.mlp, spec.attention_norm, spec.mlp_norm, norms_after=True)
        assert spec == plain, "encoders have no other layers"

        def linear(name: str) -> Linear:
            return method.create(parameters, parameters.linear(f"{place}.{name}"))

        qkv, output = linear("attention.qkv"), linear("attention.output")
        self.attention = BidirectionalAttention(spec.grouped_attention, qkv, output)
        self.attention_norm = build_norm(spec.attention_norm, parameters, f"{place}.attention_norm")
        self.mlp = MLP(spec.mlp, linear("mlp.up"), linear("mlp.down"))
        self.mlp_norm = build_norm(spec.mlp_norm, parameters, f"{place}.mlp_norm")

    def __call__(self, x: Tensor, step: StepMetadata) -> Tensor:
        """[tokens, hidden] to the same."""
        x, _ = self.attention_norm.add(self.attention(x, step), x)
        return self.mlp_norm.add(self.mlp(x, step), x)[0]

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        return (self.attention.qkv, self.attention.output, self.mlp.up, self.mlp.down)


class Encoder:
    """Token ids in, hidden states out (Devlin et al., arXiv 1810.04805)."""

    fused = None
    """No operator computes whole layers of an encoder."""

    def __init__(self, spec: DecoderSpec, parameters: Parameters, method: LinearMethod | None = None) -> None:
        method = method or CheckpointWeights()
        self.spec = spec
        self.embedding = parameters.tensor("embedding")
        self.positions: Tensor | None = None
        if spec.positions is not None:
            self.positions = parameters.tensor("positions")
        self.token_types = parameters.tensor("token_types") if spec.token_types else None
        assert spec.embedding_norm is not None
        assert spec.final_norm is None
        self.norm = build_norm(spec.embedding_norm, parameters, "embedding_norm")
        self.layers = [
            EncoderLayer(layer, parameters, f"layers.{index}", method) for index, layer in enumerate(spec.layers)
        ]
        self.classifier = None if spec.classifier is None else Classifier(spec.classifier, parameters)
        tables = [table for table in (self.embedding, self.positions, self.token_types) if table is not None]
        self.nbytes = sum(table.nbytes for table in tables)
        self.nbytes += sum(linear.nbytes for layer in self.layers for linear in layer.linears)

    def __call__(self, token_ids: Tensor, step: StepMetadata, selected: Tensor | None) -> Tensor:
        """Hidden states, [selected, hidden].

        ``token_ids``: [tokens] int, whole sequences one after another. ``selected``: [selected] int64, the tokens
        whose hidden states are wanted; None for all of them.
        """
        x = F.embedding(token_ids, self.embedding)
        if self.positions is not None:
            x += F.embedding(step.positions, self.positions)
        if self.token_types is not None:
            x += self.token_types[0] if step.token_types is None else F.embedding(step.token_types, self.token_types)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, step)
        return x if selected is None else x.index_select(0, selected)

    def logits(self, hidden: Tensor) -> Tensor:
        """There are none. Raises AssertionError: requests for them are refused before."""
        raise AssertionError("an encoder has no logits")

    def own_logits(self, hidden: Tensor) -> Tensor:
        """As :meth:`logits`."""
        return self.logits(hidden)
