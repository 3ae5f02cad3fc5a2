"""Heads that draft from a model's hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from blade_llm.layers.linear import Linear
from blade_llm.layers.rope import RotaryTable
from blade_llm.layers.step import HiddenStates, Rotation, StepMetadata
from blade_llm.models.decoder import Decoder
from blade_llm.models.decoder_layer import DecoderLayer, build_norm
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.fused import fuse_layers
from blade_llm.models.linear_method import LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.parallel.group import RankGroup
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.prediction import PredictionSpec

if TYPE_CHECKING:
    from blade_llm.kernels.decoder_layers.draft import Join, NativeDraft


UNLISTED: Final = -1e4
"""The logit of a token that a draft model does not have: never drafted where any other is allowed, and still a number
where a grammar allows no other."""


class Head(ABC):
    """Of each token its own embedding and the state of the token before it in, a state of its own out; implements
    :class:`~blade_llm.models.model.Model`.

    Token ids are those that follow the positions of the step: at position p it computes token p + 1 beside the state
    of token p, and predicts token p + 2.
    """

    classifier = None

    def __init__(
        self,
        spec: DecoderSpec,
        parameters: Parameters,
        max_positions: int,
        method: LinearMethod,
        target: Decoder,
        group: RankGroup | None = None,
    ) -> None:
        """``max_positions``: longest sequence; ``target``: the model whose embeddings it takes. ``group``: the ranks
        that each have a part of its layer; None: it is whole, on each of the target's ranks too."""
        assert spec.prediction is not None
        assert spec.final_norm is not None
        self.spec: PredictionSpec = spec.prediction
        self._target = target
        self._state_norm = build_norm(self.spec.norm, parameters, "prediction.state_norm")
        self._layer = DecoderLayer(spec.layers[0], parameters, 0, method, group)
        self._norm = build_norm(spec.final_norm, parameters, "norm")
        self._norms = {spec.final_norm, spec.layers[0].attention_norm, spec.layers[0].mlp_norm}
        attention = spec.layers[0].attention
        self._rotary = RotaryTable(attention.rope, attention.rotary_width, max_positions, target.embedding.device)
        self.nbytes = self._layer.nbytes + self._rotary.cos.nbytes + self._rotary.sin.nbytes

    def __call__(self, token_ids: Tensor, step: StepMetadata, selected: Tensor | None) -> Tensor:
        """States from which it goes on, [selected, hidden]. Arguments as a model's, see above for the tokens."""
        assert step.states is not None, "a head computes from states"
        embedded = self._target.embed(token_ids, step.positions)
        states = step.states.read(step.slot_mapping)
        return self._compute(embedded, states, self._rotary(step.positions), step, selected)

    def states(self, cache: Tensor) -> HiddenStates:
        """The states of the model that it computes from, kept in ``cache``."""
        return HiddenStates(cache, self.spec.after)

    def native_draft(self, vocabulary: int, deterministic: bool) -> NativeDraft | None:
        """As that of a :class:`~blade_llm.models.decoder.Decoder`."""
        if self._target.group is not None or not self._target.embeds_plainly:
            return None
        head, fused = self._output.packed, fuse_layers([self._layer])
        if fused is None:
            return None
        from blade_llm.kernels.decoder_layers.draft import NativeDraft
        from blade_llm.kernels.linear.native import NativeLinear

        join = self._join()
        assert isinstance(self._target.embedding, Tensor)
        if not isinstance(head, NativeLinear) or join is None:
            return None
        if self._norms != {self.spec.norm} or self.spec.norm.kind == "layer":
            return None
        return NativeDraft(
            fused,
            embedding=self._target.embedding,
            norm=self._norm.weight,
            norm_bias=None,
            head=head,
            cosines=self._rotary.cos,
            sines=self._rotary.sin,
            vocabulary=vocabulary,
            deterministic=deterministic,
            joins=join,
        )

    @property
    @abstractmethod
    def _output(self) -> Linear:
        """The output matrix."""

    @abstractmethod
    def _join(self) -> Join | None:
        """What it has beside its layer, for the operator; None where that does not compute it."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, vocabulary of the model]."""

    def own_logits(self, hidden: Tensor) -> Tensor:
        """As :meth:`logits`: every rank draws all draft tokens itself."""
        return self.logits(hidden)

    @abstractmethod
    def _compute(
        self, embedded: Tensor, states: Tensor, rotation: Rotation, step: StepMetadata, selected: Tensor | None
    ) -> Tensor:
        """``embedded``, ``states``: [tokens, hidden]."""


class MTPHead(Head):
    """A layer for multi-token prediction, with the output matrix of the model."""

    def __init__(
        self,
        spec: DecoderSpec,
        parameters: Parameters,
        max_positions: int,
        method: LinearMethod,
        target: Decoder,
        group: RankGroup | None = None,
    ) -> None:
        super().__init__(spec, parameters, max_positions, method, target, group)
        self._embedding_norm = build_norm(self.spec.norm, parameters, "prediction.embedding_norm")
        self._projection = method.create(parameters, parameters.linear("prediction.projection"))
        self.nbytes += self._projection.nbytes

    @property
    def _output(self) -> Linear:
        assert self._target.head is not None, "models that draft have an output matrix"
        return self._target.head

    def _join(self) -> Join | None:
        from blade_llm.kernels.decoder_layers.draft import Join
        from blade_llm.kernels.linear.native import NativeLinear

        projection = self._projection.packed
        if not isinstance(projection, NativeLinear) or not self._target.plain_logits:
            return None
        return Join(
            self._embedding_norm.weight,
            self._state_norm.weight,
            projection,
            tokens=None,
            states_first=self.spec.states_first,
            passes_normalised=self.spec.passes_normalised,
            normalised_residual=False,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """See :class:`Head`."""
        return self._target.logits(hidden if self.spec.passes_normalised else self._norm(hidden))

    def _compute(
        self, embedded: Tensor, states: Tensor, rotation: Rotation, step: StepMetadata, selected: Tensor | None
    ) -> Tensor:
        if self.spec.zero_first:
            embedded = embedded.masked_fill(step.positions.eq(0)[:, None], 0)
        both = [self._embedding_norm(embedded), self._state_norm(states)]
        joined = torch.cat(both[::-1] if self.spec.states_first else both, dim=1)
        x, residual = self._layer(self._projection(joined), None, rotation, step, selected)
        return self._norm.add(x, residual)[0] if self.spec.passes_normalised else x + residual


class Eagle3Head(Head):
    """EAGLE-3: an attention that is twice as wide, and an output matrix of its own for the most frequent tokens."""

    def __init__(
        self,
        spec: DecoderSpec,
        parameters: Parameters,
        max_positions: int,
        method: LinearMethod,
        target: Decoder,
        group: RankGroup | None = None,
    ) -> None:
        super().__init__(spec, parameters, max_positions, method, target, group)
        self._combine = method.create(parameters, parameters.linear("prediction.combine"))
        self._head = method.create(parameters, parameters.linear("prediction.head"))
        self._vocab_size = spec.vocab_size
        self._tokens: Tensor | None = None
        """[own vocabulary] int64: the token of each logit; None: all in order."""
        if part := parameters.map.tensors.get("prediction.tokens"):
            self._tokens = _listed(parameters.source.tensor(part.name, dtype=torch.int64), spec.vocab_size)
        self.nbytes += self._combine.nbytes + self._head.nbytes

    def states(self, cache: Tensor) -> HiddenStates:
        """See :class:`Head`."""
        return HiddenStates(cache, self.spec.after, self._combine)

    @property
    def _output(self) -> Linear:
        return self._head

    def _join(self) -> Join | None:
        from blade_llm.kernels.decoder_layers.draft import Join

        return Join(
            None,
            self._state_norm.weight,
            None,
            self._tokens,
            states_first=False,
            passes_normalised=False,
            normalised_residual=self.spec.normalised_residual,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """See :class:`Head`; of tokens that it does not list they are :data:`UNLISTED`."""
        own = self._head(self._norm(hidden))
        if self._tokens is None:
            return own
        return own.new_full((len(own), self._vocab_size), UNLISTED).index_copy_(1, self._tokens, own)

    def _compute(
        self, embedded: Tensor, states: Tensor, rotation: Rotation, step: StepMetadata, selected: Tensor | None
    ) -> Tensor:
        layer = self._layer
        normed = self._state_norm(states)
        residual = normed if self.spec.normalised_residual else states
        joined = torch.cat([layer.attention_norm(embedded), normed], dim=1)
        attended = layer.added(layer.attention(joined, rotation, step, selected))
        if selected is not None:
            residual = residual.index_select(0, selected)
        assert layer.mlp_norm is not None
        x, residual = layer.mlp_norm.add(attended, residual)
        return residual + layer.added(layer.mlp(x, step))


def _listed(offsets: Tensor, vocab_size: int) -> Tensor:
    """The token of each logit, of how much further than the logit each one is. Raises :class:`ModelFilesError`."""
    tokens = offsets + torch.arange(len(offsets), device=offsets.device)
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise ModelFilesError(
            f"the head drafts tokens {int(tokens.min())} to {int(tokens.max())} ('d2t'), the model's vocabulary has "
            f"{vocab_size}: this is the head of another model; give another --draft.model"
        )
    return tokens
