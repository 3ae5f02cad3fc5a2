"""Launched work whose results may still be on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.runner.prompt_outputs import PromptOutputResults
from blade_llm.sampling.parameters import INVALID_TOKEN, TokenLogprobs
from blade_llm.sampling.sampler import SampledSlots, SamplerOutput
from blade_llm.scheduling.plan import StepResult


@dataclass(frozen=True, slots=True)
class LaunchedForward:
    """A launched forward pass: the logits of the slots that sample."""

    sampled: SampledSlots
    logits: Tensor | None
    """[sampled, vocabulary] in the model's type; None when no slot samples."""
    prompt_results: PromptOutputResults | None = None


class LaunchedStep:
    """A step's tokens on their way to the host. On CPU they are there; on GPU a copy was queued behind the sampling.

    A step that samples nothing (part of a long prompt) is waited for like any other: else the host would run ahead by
    all parts of the prompt, and take their launches' time for the device's.
    """

    def __init__(
        self, sampled: SamplerOutput | None, device: torch.device, prompt_results: PromptOutputResults | None = None
    ) -> None:
        self._sampled = sampled
        self._prompt_results = prompt_results
        self._event: torch.cuda.Event | None = None
        self._host: list[Tensor] = []
        if sampled is not None:
            wanted = [sampled.tokens if sampled.reported is None else sampled.reported]
            if sampled.logprobs is not None:
                wanted += [sampled.logprobs.chosen, sampled.logprobs.top_values, sampled.logprobs.top_tokens]
            self._host = [tensor.to("cpu", non_blocking=True) for tensor in wanted]
        self._host_prompt_results: list[Tensor] = []
        if prompt_results is not None:
            self._host_prompt_results = [tensor.to("cpu", non_blocking=True) for tensor in prompt_results.tensors]
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def done(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def result(self) -> StepResult:
        if self._event is not None:
            self._event.synchronize()
        tokens, logprobs = self._sampled_tokens()
        if self._prompt_results is None:
            return StepResult(tokens, logprobs, invalid=self._invalid())
        return StepResult(tokens, logprobs, *self._prompt_results.read(self._host_prompt_results), self._invalid())

    def _invalid(self) -> list[int]:
        """Indices of the slots that sampled where the logits are no numbers."""
        if self._sampled is None or self._sampled.reported is None:
            return []
        tokens = self._host[0].tolist()
        return (
            [index for index, token in enumerate(tokens) if token == INVALID_TOKEN] if INVALID_TOKEN in tokens else []
        )

    def _sampled_tokens(self) -> tuple[list[list[int]], list[list[TokenLogprobs] | None]]:
        """Tokens and log-probabilities of the slots that sampled."""
        if self._sampled is None:
            return [], []
        tokens = [[token] for token in self._host[0].tolist()]
        logprobs: list[list[TokenLogprobs] | None] = [None] * len(tokens)
        if wanted_logprobs := self._sampled.logprobs:
            chosen = self._host[1].tolist()
            values, ids = (tensor.numpy() for tensor in self._host[2:])  # as wide as the slot that wants most
            for i, (index, count) in enumerate(zip(wanted_logprobs.indices, wanted_logprobs.counts, strict=True)):
                best = tuple(ids[i, :count].tolist()), tuple(values[i, :count].tolist())
                logprobs[index] = [TokenLogprobs(chosen[i], *best)]
        return tokens, logprobs
