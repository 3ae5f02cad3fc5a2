"""Launched work whose results may still be on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.runner.prompts import StepAnswers
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.sampling.sampler import Drawn, SampledRows
from blade_llm.scheduling.plan import StepResult


@dataclass(frozen=True, slots=True)
class LaunchedForward:
    """A forward pass: the logits of the rows that draw."""

    sampled: SampledRows
    logits: Tensor | None
    """[sampled, vocabulary] in the model's type; None when no row draws."""
    answers: StepAnswers | None = None
    """What rows asked about their prompts."""


class LaunchedStep:
    """A step's tokens on their way to the host. On CPU they are there; on GPU a copy was queued behind the draw.

    A step that draws nothing (part of a long prompt) is waited for like any other: else the host would run ahead by
    all parts of the prompt, and take their launches' time for the device's.
    """

    def __init__(self, drawn: Drawn | None, device: torch.device, answers: StepAnswers | None = None) -> None:
        self._drawn = drawn
        self._answers = answers
        self._event: torch.cuda.Event | None = None
        self._host: list[Tensor] = []
        if drawn is not None:
            wanted = [drawn.tokens]
            if drawn.logprobs is not None:
                wanted += [drawn.logprobs.chosen, drawn.logprobs.top_values, drawn.logprobs.top_tokens]
            self._host = [tensor.to("cpu", non_blocking=True) for tensor in wanted]
        self._host_answers: list[Tensor] = []
        if answers is not None:
            self._host_answers = [tensor.to("cpu", non_blocking=True) for tensor in answers.tensors]
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def done(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def result(self) -> StepResult:
        if self._event is not None:
            self._event.synchronize()
        tokens, logprobs = self._draws()
        if self._answers is None:
            return StepResult(tokens, logprobs)
        return StepResult(tokens, logprobs, *self._answers.read(self._host_answers))

    def _draws(self) -> tuple[list[list[int]], list[list[TokenLogprobs] | None]]:
        """Tokens and log-probabilities of the rows that drew."""
        if self._drawn is None:
            return [], []
        tokens = [[token] for token in self._host[0].tolist()]
        logprobs: list[list[TokenLogprobs] | None] = [None] * len(tokens)
        if asked := self._drawn.logprobs:
            chosen = self._host[1].tolist()
            values, ids = (tensor.numpy() for tensor in self._host[2:])  # as wide as the row that asks for most
            for i, (index, count) in enumerate(zip(asked.indices, asked.counts, strict=True)):
                best = tuple(ids[i, :count].tolist()), tuple(values[i, :count].tolist())
                logprobs[index] = [TokenLogprobs(chosen[i], *best)]
        return tokens, logprobs
