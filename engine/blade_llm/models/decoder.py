"""The one decoder: what it computes is in its specs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.lora import TokenGroups
from blade_llm.layers.linear import Linear
from blade_llm.layers.moe import MoE
from blade_llm.layers.quantized_table import QuantizedTable
from blade_llm.layers.rope import RotaryTable
from blade_llm.layers.step import Rotation, StepMetadata
from blade_llm.layers.vocabulary import embed, gather_logits
from blade_llm.models.classifier import Classifier
from blade_llm.models.decoder_layer import DecoderLayer, build_norm
from blade_llm.models.fused import fuse_layers
from blade_llm.models.linear_method import CheckpointWeights, LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.link import StageLink, receive_tensor, send_tensor
from blade_llm.spec.decoder import DecoderSpec

if TYPE_CHECKING:
    from blade_llm.kernels.decoder_layers.draft import NativeDraft


class Decoder:
    """Token ids in, hidden states out; :meth:`logits` of those that are sampled. A stage of a pipeline takes the states
    of the stage before, and sends its own to the next."""

    def __init__(
        self,
        spec: DecoderSpec,
        parameters: Parameters,
        max_positions: int,
        method: LinearMethod | None = None,
        group: RankGroup | None = None,
        link: StageLink | None = None,
    ) -> None:
        """``max_positions``: longest sequence, for the tables of rotary angles. ``group``: the ranks that compute the
        layers together, each with its own ``spec`` and tensors (:mod:`blade_llm.models.sharding`).
        ``link``: to the stages before and after, where ``spec`` does not have all layers."""
        assert (link is None) == (spec.begins and spec.ends)
        method = method or CheckpointWeights()
        self.spec = spec
        self.group, self._link = group, link
        self._embedding: Tensor | QuantizedTable | None = None
        table = parameters.map.table
        if spec.begins or (table is None and spec.ends and spec.head and spec.tied):
            self._embedding = _embedding(parameters)
        self.positions = None if spec.positions is None else parameters.tensor("positions")
        norm = spec.embedding_norm
        self.embedding_norm = None if norm is None else build_norm(norm, parameters, "embedding_norm")
        self.layers = [DecoderLayer(layer, parameters, index, method, group) for index, layer in enumerate(spec.layers)]
        rope_of = [(layer.attention.rope, layer.attention.rotary_width) for layer in spec.layers]
        ropes = list(dict.fromkeys(rope_of))
        some = self.layers[0].weight
        self.rotary = [RotaryTable(rope, dim, max_positions, some.device) for rope, dim in ropes]
        """One table for each kind of rotation."""
        self._rope_of = [ropes.index(each) for each in rope_of]
        self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=some.dtype).item()
        """Rounded as the models' own code does."""
        self.fused = fuse_layers(self.layers, group) if len(self.rotary) == 1 else None
        """All layers in one call; without it they compute the same one by one."""
        assert spec.final_norm is not None, "a decoder ends with a norm"
        self.norm = build_norm(spec.final_norm, parameters, "norm") if spec.ends else None
        self.head: Linear | None = None
        if spec.ends and spec.head and spec.tied and table is not None:
            self.head = method.create(parameters, table.linear)
        elif spec.ends and spec.head and spec.tied:
            assert isinstance(self.embedding, Tensor)
            self.head = method.shared(self.embedding)
        elif spec.ends and spec.head:
            self.head = method.create(parameters, parameters.linear("head"))
        self.classifier: Classifier | None = None
        if spec.ends and spec.classifier is not None:
            self.classifier = Classifier(spec.classifier, parameters)
        self.nbytes = self._count_bytes()

    def __call__(self, token_ids: Tensor, step: StepMetadata, selected: Tensor | None) -> Tensor:
        """Normalised hidden states, [selected, hidden].

        ``token_ids``: [tokens] int. ``selected``: [selected] int64, the tokens whose hidden states are wanted; None
        for all of them. Of a stage that is not the last: the states of all tokens after its layers, as they were sent.
        """
        if self.spec.begins:
            x = self.embed(token_ids, step.positions)
            _feed_images(x, step)
        else:
            assert self._link is not None
            some = self.layers[0].weight
            x = receive_tensor(self._link, (len(token_ids), self.spec.hidden_size), some.dtype, some.device)
        if not self.spec.ends:
            selected = None
        residual: Tensor | None = None
        rotations = [table(step.positions, step.axis_positions) for table in self.rotary]
        last, states = self.layers[-1], step.states
        # The last layer goes on with few of a prefill's tokens; where most are wanted, all are computed alike.
        every = states is not None and not states.after
        levels = self._levels(step)
        every_layer = levels == len(self.layers)
        most = selected is not None and (every or every_layer or 2 * len(selected) > len(token_ids))
        early = None if most else selected
        done = len(self.layers) - (early is not None)
        kept: dict[int, Tensor] = {}
        if done and self._fuses(step):
            x, residual = self._fused_layers(x, rotations[0], step, done, kept)
        else:
            done = 0
        for index, layer in enumerate(self.layers[done:], start=done):
            if states is not None and index in states.after:
                kept[index] = x if residual is None else x + residual
            rotation = rotations[self._rope_of[index]]
            x, residual = layer(x, residual, rotation, step, early if layer is last else None)
            if index < levels:
                _add_level(x, step, index)
        assert residual is not None
        if states is not None and kept:
            states.write_after(step.slot_mapping, kept)
        if self.norm is None:
            assert self._link is not None
            send_tensor(self._link, sent := x + residual)
            return sent
        if most and selected is not None and not every:
            x, residual = x.index_select(0, selected), residual.index_select(0, selected)
        hidden = self.norm.add(x, residual)[0]
        if states is None or not every:
            return hidden
        states.write(step.slot_mapping, hidden)
        return hidden if selected is None else hidden.index_select(0, selected)

    @property
    def embedding(self) -> Tensor | QuantizedTable:
        """[vocabulary, hidden]; not of a stage in which neither the first layer nor the output matrix needs it."""
        assert self._embedding is not None, "a later stage takes states, not tokens"
        return self._embedding

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """What the first layer gets, [tokens, hidden]; both: [tokens] int."""
        x = embed(token_ids, self.embedding, self.spec.vocab_size, self.group)
        if self.spec.embedding_scale != 1.0:
            x *= self._embedding_scale
        if self.positions is not None:
            x += F.embedding(positions, self.positions)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def _levels(self, step: StepMetadata) -> int:
        """Layers of its own behind which something is added."""
        return min(step.levels, len(self.layers))

    def _fuses(self, step: StepMetadata) -> bool:
        """Whether layers of the step are one call."""
        adapters = step.adapters
        if self.fused is None or isinstance(adapters, TokenGroups):
            return False
        return adapters is None or self.fused.serves_adapters(adapters)

    def _fused_layers(
        self, x: Tensor, rotation: Rotation, step: StepMetadata, count: int, kept: dict[int, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The first ``count`` layers, in a call up to each whose states are wanted, which join ``kept``, or to whose
        states something is added."""
        assert self.fused is not None
        assert not isinstance(step.adapters, TokenGroups)
        wanted = () if step.states is None else step.states.after
        levels = self._levels(step)
        cuts = sorted({each for each in (*wanted, *range(1, levels + 1)) if each < count})
        first, residual = 0, x
        for end in (*cuts, count):
            if end > first:
                x, residual = self.fused(
                    residual,
                    rotation.cos,
                    rotation.sin,
                    step.slot_mapping,
                    step.attention,
                    step.kv_cache,
                    end,
                    step.adapters,
                    first,
                )
                if end <= levels:
                    _add_level(x, step, end - 1)
            if end < count:
                if end:
                    residual += x
                if end in wanted:
                    kept[end] = residual.clone()
            first = end
        return x, residual

    def logits(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, vocabulary]; not of a model without output matrix."""
        logits = self.own_logits(hidden)
        return logits if self.group is None else gather_logits(logits, self.spec.vocab_size, self.group)

    def own_logits(self, hidden: Tensor) -> Tensor:
        """As :meth:`logits`; of several ranks those of this one's part of the vocabulary."""
        assert self.head is not None, "this model was loaded without its output matrix"
        logits = self.head(hidden)
        if self.spec.logits_scale != 1.0:
            logits = logits.mul_(self.spec.logits_scale)
        cap = self.spec.logits_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    @property
    def embeds_plainly(self) -> bool:
        """Whether the first layer gets rows of a bf16 table, and nothing else."""
        if self.positions is not None or self.embedding_norm is not None or self.spec.embedding_scale != 1.0:
            return False
        return isinstance(self._embedding, Tensor) and self._embedding.dtype == torch.bfloat16

    @property
    def plain_logits(self) -> bool:
        """Whether the output matrix's results are the logits."""
        return self.spec.logits_scale == 1.0 and not self.spec.logits_softcap

    def native_draft(self, vocabulary: int, deterministic: bool) -> NativeDraft | None:
        """The operator for all steps of a draft at once, over the first ``vocabulary`` tokens; None where the model's
        operators are to be called one by one."""
        spec, head = self.spec, None if self.head is None else self.head.packed
        if self.fused is None or self.group or not self.embeds_plainly or not self.plain_logits:
            return None
        if self.rotary[0].has_axes:  # it looks angles up by one position
            return None
        from blade_llm.kernels.decoder_layers.draft import NativeDraft
        from blade_llm.kernels.linear.native import NativeLinear

        assert self.norm is not None
        assert isinstance(self.embedding, Tensor)
        if not isinstance(head, NativeLinear) or spec.final_norm != spec.layers[0].mlp_norm:
            return None
        return NativeDraft(
            self.fused,
            embedding=self.embedding,
            norm=self.norm.weight,
            norm_bias=self.norm.bias,
            head=head,
            cosines=self.rotary[0].cos,
            sines=self.rotary[0].sin,
            vocabulary=vocabulary,
            deterministic=deterministic,
        )

    def warm_experts(self) -> None:
        """Compile the kernels of each kind of mixture-of-experts layer before the first request, on a GPU."""
        for layer in {layer.spec.mlp: layer for layer in self.layers}.values():
            if isinstance(layer.mlp, MoE):
                layer.mlp.warm(layer.weight.new_zeros(1, self.spec.hidden_size))

    def _count_bytes(self) -> int:
        tables: list[Tensor | QuantizedTable] = [each for table in self.rotary for each in (table.cos, table.sin)]
        tables += [each for each in (self._embedding, self.positions) if each is not None]
        shared = self.spec.tied and self.head is not None and self.head.packed is None
        head = 0 if self.head is None or shared else self.head.nbytes
        return sum(layer.nbytes for layer in self.layers) + sum(table.nbytes for table in tables) + head


def _feed_images(x: Tensor, step: StepMetadata) -> None:
    """Put the embeddings of images into ``x``, [tokens, hidden]."""
    if step.image_rows is not None:
        assert step.image_embeddings is not None
        x.index_copy_(0, step.image_rows, step.image_embeddings[0])


def _add_level(x: Tensor, step: StepMetadata, layer: int) -> None:
    """Add to what ``layer`` adds, [tokens, hidden], what the tokens of images get behind it."""
    assert step.image_embeddings is not None
    assert step.image_rows is not None
    x.index_add_(0, step.image_rows, step.image_embeddings[1 + layer])


def _embedding(parameters: Parameters) -> Tensor | QuantizedTable:
    """The embedding table as the checkpoint has it."""
    table = parameters.map.table
    if table is None:
        return parameters.tensor("embedding")
    return QuantizedTable(parameters.quantized(table.part), parameters.source.dtype)
