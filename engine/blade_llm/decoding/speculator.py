"""The drafter of an engine: a method that proposes tokens, the acceptance that was seen, and the controller that
decides how many of them are verified."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np

from blade_llm.decoding.acceptance import AcceptanceRate
from blade_llm.decoding.controller import draft_counts
from blade_llm.decoding.method import Method
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.decoding.tally import Pause, Tally
from blade_llm.scheduling.drafting import Draft, StepRoom, StepTokens
from blade_llm.scheduling.request import Request
from blade_protocol.state import SpeculationCounts

logger = logging.getLogger(__name__)

_OWN_WEIGHT: Final = 4.0
"""Observations of a request that count as much as what is known of all others."""


class Speculator:
    """Implements :class:`blade_llm.scheduling.drafting.Drafter`."""

    past_end = False

    def __init__(
        self, method: Method, seconds: StepSeconds, *, gamma: int, disable_above_batch: int | None = None
    ) -> None:
        """``gamma``: draft tokens of one decode at most; ``disable_above_batch``: none with more running requests."""
        self._method = method
        self._seconds = seconds
        self._gamma = gamma
        self._disable_above = disable_above_batch
        self._kinds = [AcceptanceRate() for _ in range(method.kinds)]
        self._own: dict[Request, tuple[int, AcceptanceRate]] = {}
        """The kind of each request's last draft, and its own rate."""
        self._trials = 1.0
        self._tally = Tally(gamma)
        self._pause = Pause()

    @property
    def counts(self) -> SpeculationCounts:
        """What was drafted and accepted since the start."""
        return self._tally.counts

    def active(self, num_running: int) -> bool:
        """Whether decodes are to wait for their last token, so that drafts can follow it."""
        if self._tally.failed or (self._disable_above is not None and num_running > self._disable_above):
            return False
        return self._pause.over()

    def propose(
        self, requests: Sequence[Request], rooms: Sequence[int], most: StepRoom, other_tokens: int
    ) -> Sequence[Draft]:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        gamma = self._gamma
        found = self._method.candidates(requests, [min(room, gamma) for room in rooms])
        rates = np.zeros((len(requests), gamma))
        within = np.zeros(len(requests), dtype=np.int64)
        upper = [kind.upper(self._trials) for kind in self._kinds]
        for index, (request, room, (kind, tokens)) in enumerate(zip(requests, rooms, found, strict=True)):
            if kind < 0 or room <= 0:
                continue
            within[index] = min(room, gamma if tokens is None else len(tokens))
            rates[index] = self._rate(request, kind, upper[kind])
        counts = draft_counts(rates, within, self._seconds, most_tokens=min(most), other_tokens=other_tokens)
        self._pause.proposed(bool(counts.any()))
        drafts = []
        for request, count, (kind, tokens) in zip(requests, counts.tolist(), found, strict=True):
            if count:
                own = self._own.get(request)
                self._own[request] = kind, AcceptanceRate(upper[kind], _OWN_WEIGHT) if own is None else own[1]
            count, computed = self._method.drafted(request, count)
            drafts.append(Draft(count, None if tokens is None else tokens[:count], computed))
        return drafts

    def observe(self, request: Request, drafted: int, accepted: int, window: Sequence[int] = ()) -> None:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        self._tally.observe(drafted, accepted)
        own = self._own.get(request)
        if own is None:
            return
        kind, rate = own
        rejected = accepted < drafted
        rate.observe(accepted, rejected)
        self._kinds[kind].observe(accepted, rejected)
        self._trials += accepted + rejected

    def observe_step(self, step: StepTokens, seconds: float, host: float) -> None:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        if step.decodes and not step.prefill_tokens and not step.draft_prefill_tokens:
            self._seconds.observe(step.decodes + step.draft_tokens, step.decodes, step.draft_steps, seconds, host)

    def failed(self) -> None:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        if not self._tally.failed:
            logger.error(
                "the draft model computed NaN: decoding goes on without drafts; check its files, or give "
                "--draft.dtype bfloat16 or float32 (of a head that reads the model's states: --dtype)"
            )
        self._tally.failed = True

    def forget(self, request: Request) -> None:
        """See :class:`~blade_llm.scheduling.drafting.Drafter`."""
        self._own.pop(request, None)
        self._method.forget(request)

    def _rate(self, request: Request, kind: int, upper: float) -> float:
        own = self._own.get(request)
        if own is None or own[0] != kind:
            return upper
        return min(own[1].mean + (upper - self._kinds[kind].mean), 0.98)
