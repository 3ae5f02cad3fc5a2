"""What a step tells about the prompts it computes: log-probabilities of their tokens, and pooled hidden states.

Most steps tell nothing. Where a row asks, the model's last layer goes on with more of its tokens than the one that
draws, and what comes of them is read at once: scored in pieces, so that never many rows of logits exist, and summed up
over the chunks of a long prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from blade_llm.models.memory import SCORED_AT_ONCE
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.scheduling.plan import NewRow, StepPlan


@dataclass(slots=True)
class PromptQuestion:
    """What a row asks about its prompt."""

    num_prompt_tokens: int
    top: int | None
    """So many of the likeliest tokens at each position; None: no log-probabilities."""
    pooling: Literal["", "last", "mean"]
    sum: Tensor | None = None
    """Of the hidden states so far, [hidden] fp32, where the mean is asked for."""

    @classmethod
    def of(cls, new: NewRow) -> PromptQuestion | None:
        """What a request asks when it enters its row; None for nothing."""
        top = new.sampling.prompt_logprobs
        return cls(new.num_prompt_tokens, top, new.pooling) if new.pooling or top is not None else None


@dataclass(frozen=True, slots=True)
class _Scored:
    index: int
    """Of the plan's rows."""
    count: int
    top: int


@dataclass(frozen=True, slots=True)
class _Pooled:
    index: int
    count: int
    question: PromptQuestion
    begins: bool
    ends: bool


@dataclass(slots=True)
class StepQuestions:
    """What the rows of one step ask: hidden states first of the scored positions, then of the pooled ones."""

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
        cls, plan: StepPlan, query_starts: np.ndarray, questions: dict[int, PromptQuestion], table_width: int
    ) -> StepQuestions | None:
        """``query_starts``: where each share's tokens begin among the step's. ``questions``: by row;
        those of rows past their prompt are forgotten. None for none."""
        step = cls()
        for index, share in enumerate(plan.rows):
            question = questions.get(share.row)
            if question is None:
                continue
            if share.start >= question.num_prompt_tokens:
                del questions[share.row]
                continue
            tokens = np.arange(share.count) + query_starts[index]
            end = share.start + share.count
            scored = min(end, question.num_prompt_tokens - 1) - share.start
            if question.top is not None and scored > 0:
                step.scored.append(_Scored(index, scored, question.top))
                step._scored_tokens.append(tokens[:scored])
                step._targets.append(np.arange(scored) + (share.row * table_width + share.start + 1))
            ends = end >= question.num_prompt_tokens
            if question.pooling == "mean" or (question.pooling and ends):
                pooled = tokens if question.pooling == "mean" else tokens[-1:]
                step.pooled.append(_Pooled(index, len(pooled), question, share.start == 0, ends))
                step._pooled_tokens.append(pooled)
        return step if step.scored or step.pooled else None


@dataclass(frozen=True, slots=True)
class StepAnswers:
    """What came of :class:`StepQuestions`, still on the device."""

    questions: StepQuestions
    tensors: list[Tensor]
    """Chosen log-probabilities, the best ones, their tokens, and pooled states."""

    def read(self, host: list[Tensor]) -> tuple[dict[int, list[TokenLogprobs]], dict[int, bytes]]:
        """By index into the plan's rows, as :class:`~blade_llm.scheduling.plan.StepResult` has it.

        ``host``: copies of :attr:`tensors`.
        """
        chosen, values, tokens = (tensor.tolist() for tensor in host[:3])
        logprobs: dict[int, list[TokenLogprobs]] = {}
        begin = 0
        for scored in self.questions.scored:
            logprobs[scored.index] = [
                TokenLogprobs(chosen[i], tuple(tokens[i][: scored.top]), tuple(values[i][: scored.top]))
                for i in range(begin, begin + scored.count)
            ]
            begin += scored.count
        finished = [pooled.index for pooled in self.questions.pooled if pooled.ends]
        states = host[3].numpy().astype("<f4", copy=False)
        return logprobs, {index: state.tobytes() for index, state in zip(finished, states, strict=True)}


def answer(
    questions: StepQuestions, hidden: Tensor, next_tokens: Tensor, logits: Callable[[Tensor], Tensor]
) -> StepAnswers:
    """Score and pool.

    ``hidden``: [positions, hidden] after the final norm, in the order of :attr:`StepQuestions.selected`.
    ``next_tokens``: [scored positions], what :attr:`StepQuestions.targets` points to. ``logits``: the model's.
    """
    count = sum(scored.count for scored in questions.scored)
    top = max((scored.top for scored in questions.scored), default=0)
    return StepAnswers(
        questions, [*_score(hidden[:count], next_tokens.long(), top, logits), _pool(questions.pooled, hidden[count:])]
    )


def _score(
    hidden: Tensor, next_tokens: Tensor, top: int, logits: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    pieces: list[tuple[Tensor, ...]] = []
    for begin in range(0, len(hidden), SCORED_AT_ONCE):
        some = slice(begin, begin + SCORED_AT_ONCE)
        scores = logits(hidden[some]).float()
        norm = scores.logsumexp(-1, keepdim=True)
        chosen = scores.gather(1, next_tokens[some].unsqueeze(1)) - norm
        best = scores.topk(min(top, scores.shape[1]))
        pieces.append((chosen.squeeze(1), best.values - norm, best.indices))
    if not pieces:
        return hidden.new_zeros(0), hidden.new_zeros(0, 0), next_tokens.new_zeros(0, 0)
    chosen, values, tokens = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return chosen, values, tokens


def _pool(pooled: list[_Pooled], hidden: Tensor) -> Tensor:
    """[prompts that end, hidden] fp32."""
    states = [hidden.new_zeros(0, hidden.shape[1], dtype=torch.float32)]
    begin = 0
    for one in pooled:
        share, question = hidden[begin : begin + one.count], one.question
        begin += one.count
        if question.pooling == "last":
            states.append(share.float())
            continue
        total = share.sum(0, keepdim=True, dtype=torch.float32)
        if not one.begins:
            assert question.sum is not None, "a mean needs every position of the prompt"
            total += question.sum
        question.sum = None if one.ends else total
        if one.ends:
            states.append(total / question.num_prompt_tokens)
    return torch.cat(states)
