"""Prompt log-probabilities and pooled hidden states: the outputs of a step that are about the prompts it computes.

Most steps have none. Where a request wants them, the model's last layer goes on with more of its tokens than the one
that is sampled after, and their hidden states are used at once: scored in pieces, so that never many rows of logits
exist, and summed up over the chunks of a long prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from blade_llm.models.memory import SCORED_AT_ONCE
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.scheduling.plan import NewRequest, StepPlan


@dataclass(slots=True)
class PromptOutputRequest:
    """The prompt log-probabilities or the pooling that one request wants."""

    num_prompt_tokens: int
    top: int | None
    """Number of the likeliest tokens at each position; None: no log-probabilities."""
    pooling: Literal["", "last", "mean", "cls"]
    sum: Tensor | None = None
    """Sum of the hidden states so far, or the first one, [1, hidden] fp32, where the mean or the first is wanted."""

    @classmethod
    def of(cls, new: NewRequest) -> PromptOutputRequest | None:
        """The prompt outputs that a new request wants; None for none."""
        top = new.sampling.prompt_logprobs
        return cls(new.num_prompt_tokens, top, new.pooling) if new.pooling or top is not None else None


@dataclass(frozen=True, slots=True)
class _Scored:
    index: int
    """Index into the plan's chunks."""
    count: int
    top: int


@dataclass(frozen=True, slots=True)
class _Pooled:
    index: int
    count: int
    request: PromptOutputRequest
    begins: bool
    ends: bool


_POOLED: Final[dict[str, Callable[[np.ndarray, bool], np.ndarray]]] = {
    "mean": lambda tokens, begins: tokens,
    "last": lambda tokens, begins: tokens[-1:],
    "cls": lambda tokens, begins: tokens[: int(begins)],
}
"""Which of a chunk's tokens a way of pooling needs; ``begins``: they are the prompt's first."""


@dataclass(slots=True)
class PromptOutputBatch:
    """The prompt outputs that the requests of one step want: hidden states first of the scored positions, then of the
    pooled ones."""

    scored: list[_Scored] = field(default_factory=list)
    pooled: list[_Pooled] = field(default_factory=list)
    _scored_tokens: list[np.ndarray] = field(default_factory=list)
    _pooled_tokens: list[np.ndarray] = field(default_factory=list)
    _targets: list[np.ndarray] = field(default_factory=list)

    @property
    def selected(self) -> np.ndarray:
        """[positions]: which of the step's tokens."""
        return np.concatenate(self._scored_tokens + self._pooled_tokens)

    @property
    def targets(self) -> np.ndarray:
        """[scored positions]: where the token table, seen flat, has the token that follows."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *self._targets])

    @classmethod
    def of(
        cls, plan: StepPlan, query_starts: np.ndarray, requests: dict[int, PromptOutputRequest], table_width: int
    ) -> PromptOutputBatch | None:
        """The prompt outputs of a step; None for none.

        ``query_starts``: where each chunk's tokens begin among the step's. ``requests``: by slot; those of slots past
        their prompt are removed.
        """
        step = cls()
        for index, chunk in enumerate(plan.chunks):
            request = requests.get(chunk.slot)
            if request is None:
                continue
            if chunk.start >= request.num_prompt_tokens:
                del requests[chunk.slot]
                continue
            tokens = np.arange(chunk.count) + query_starts[index]
            end = chunk.start + chunk.count
            scored = min(end, request.num_prompt_tokens - 1) - chunk.start
            if request.top is not None and scored > 0:
                step.scored.append(_Scored(index, scored, request.top))
                step._scored_tokens.append(tokens[:scored])
                step._targets.append(np.arange(scored) + (chunk.slot * table_width + chunk.start + 1))
            ends = end >= request.num_prompt_tokens
            if request.pooling in ("mean", "cls") or (request.pooling and ends):
                pooled = _POOLED[request.pooling](tokens, chunk.start == 0)
                step.pooled.append(_Pooled(index, len(pooled), request, chunk.start == 0, ends))
                step._pooled_tokens.append(pooled)
        return step if step.scored or step.pooled else None


@dataclass(frozen=True, slots=True)
class PromptOutputResults:
    """The results of a :class:`PromptOutputBatch`, still on the device."""

    batch: PromptOutputBatch
    tensors: list[Tensor]
    """Chosen log-probabilities, the best ones, their tokens, the ranks of the chosen, and pooled states."""

    def read(self, host: list[Tensor]) -> tuple[dict[int, list[TokenLogprobs]], dict[int, bytes]]:
        """By index into the plan's chunks, as :class:`~blade_llm.scheduling.plan.StepResult` has it.

        ``host``: copies of :attr:`tensors`.
        """
        chosen, values, tokens, ranks = (tensor.tolist() for tensor in host[:4])
        logprobs: dict[int, list[TokenLogprobs]] = {}
        begin = 0
        for scored in self.batch.scored:
            logprobs[scored.index] = [
                TokenLogprobs(chosen[i], tuple(tokens[i][: scored.top]), tuple(values[i][: scored.top]), ranks[i])
                for i in range(begin, begin + scored.count)
            ]
            begin += scored.count
        finished = [pooled.index for pooled in self.batch.pooled if pooled.ends]
        states = host[4].numpy().astype("<f4", copy=False)
        return logprobs, {index: state.tobytes() for index, state in zip(finished, states, strict=True)}


def compute_prompt_outputs(
    batch: PromptOutputBatch,
    hidden: Tensor,
    next_tokens: Tensor,
    logits: Callable[[Tensor], Tensor],
    classify: Callable[[Tensor], Tensor] | None = None,
) -> PromptOutputResults:
    """Score and pool.

    ``hidden``: [positions, hidden] after the final norm, in the order of :attr:`PromptOutputBatch.selected`.
    ``next_tokens``: [scored positions], what :attr:`PromptOutputBatch.targets` points to. ``logits``: the model's.
    ``classify``: makes something else of the pooled states, [prompts, hidden] fp32.
    """
    count = sum(scored.count for scored in batch.scored)
    top = max((scored.top for scored in batch.scored), default=0)
    pooled = _pool(batch.pooled, hidden[count:])
    if classify is not None:
        pooled = classify(pooled)
    return PromptOutputResults(batch, [*_score(hidden[:count], next_tokens.long(), top, logits), pooled])


def _score(
    hidden: Tensor, next_tokens: Tensor, top: int, logits: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    pieces: list[tuple[Tensor, ...]] = []
    for begin in range(0, len(hidden), SCORED_AT_ONCE):
        some = slice(begin, begin + SCORED_AT_ONCE)
        scores = logits(hidden[some]).float()
        norm = scores.logsumexp(-1, keepdim=True)
        chosen = scores.gather(1, next_tokens[some].unsqueeze(1))
        ranks = (scores >= chosen).sum(-1)
        best = scores.topk(min(top, scores.shape[1]))
        pieces.append(((chosen - norm).squeeze(1), best.values - norm, best.indices, ranks))
    if not pieces:
        none = next_tokens.new_zeros(0)
        return hidden.new_zeros(0), hidden.new_zeros(0, 0), next_tokens.new_zeros(0, 0), none
    chosen, values, tokens, ranks = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return chosen, values, tokens, ranks


def _pool(pooled: list[_Pooled], hidden: Tensor) -> Tensor:
    """[prompts that end, hidden] fp32."""
    states = [hidden.new_zeros(0, hidden.shape[1], dtype=torch.float32)]
    begin = 0
    for one in pooled:
        chunk, request = hidden[begin : begin + one.count], one.request
        begin += one.count
        if request.pooling == "last":
            states.append(chunk.float())
            continue
        total = chunk.sum(0, keepdim=True, dtype=torch.float32)
        if not one.begins:
            assert request.sum is not None, "a mean needs every position of the prompt"
            total += request.sum
        request.sum = None if one.ends else total
        if one.ends:
            states.append(total if request.pooling == "cls" else total / request.num_prompt_tokens)
    return torch.cat(states)
