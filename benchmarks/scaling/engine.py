"""A model of one engine: continuous batching with chunked prefill, in events instead of steps.

A step computes one token of each decode and up to ``budget`` prompt tokens, first come first served, and takes
``fixed`` + ``per_request`` for each decode + ``per_token`` for each prompt token. Between two events (a request
comes, a prompt is done, a response ends) all steps are alike, so that decodes and prompts progress evenly.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

LEFT: Final = 1e-5
"""Tokens that count as none: clocks are not as fine."""


SETTLED: Final = 900.0
"""Seconds before which nothing counts: a service has been up for a while."""
TYPICAL: Final = 100
"""Tokens of a response."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What an engine can do, in seconds."""

    fixed: float
    """Of a step without anything in it."""
    per_request: float
    """That a decode adds."""
    per_token: float
    """That a prompt token adds."""
    start: float
    """From a decision to an engine that answers."""
    budget: int = 2048
    """Prompt tokens of a step."""
    max_seqs: int = 128
    """Requests that are computed at once."""


@dataclass(slots=True)
class Request:
    """One request, and what became of it."""

    at: float
    prompt: int
    completion: int
    first: float = math.inf
    """When its first token came."""
    end: float = math.inf

    @property
    def ttft(self) -> float:
        """Seconds."""
        return self.first - self.at

    @property
    def tpot(self) -> float:
        """Seconds; 0 for a response of one token."""
        return (self.end - self.first) / (self.completion - 1) if self.completion > 1 else 0.0


@dataclass(slots=True)
class Engine:
    """One engine."""

    profile: Profile
    now: float
    """The time of what follows."""
    load: int = 0
    """Requests that it has."""
    event: float = math.inf
    """When something changes next, if nothing comes."""
    wait: float = 0.0
    """Seconds by which a request that comes is expected to take longer than on an engine without one: for the prompts
    before it and for decodes beside it, of :data:`TYPICAL` tokens."""
    first: list[Request] = field(default_factory=list)
    """Whose first token came; the caller takes them away."""
    waiting: deque[Request] = field(default_factory=deque)
    _done: float = 0.0
    """Tokens that a decode that was there all the time would have got."""
    _decodes: list[tuple[float, int, Request]] = field(default_factory=list)
    """By what ``_done`` will be at their ends."""
    _prompts: deque[Request] = field(default_factory=deque)
    _prompt_left: float = 0.0
    """Tokens of the first prompt."""
    _prompt_tokens: float = 0.0
    """Of all prompts, that are left."""
    _step: float = 1.0
    """Seconds of a step."""
    _chunk: float = 0.0
    """Prompt tokens in it."""
    _numbers: int = 0

    @property
    def running(self) -> int:
        """Requests that are computed."""
        return self.load - len(self.waiting)

    def add(self, request: Request, now: float) -> None:
        """``request`` comes at ``now``, up to which :meth:`advance` was called."""
        self._pass(now)
        self.load += 1
        self.waiting.append(request)
        self._admit()
        self._plan()

    def advance(self, to: float) -> list[Request]:
        """Compute until ``to``; the requests that ended."""
        ended: list[Request] = []
        decodes = self._decodes
        while self.event <= to:
            self._pass(self.event)
            if self._prompts and self._prompt_left <= LEFT:
                self._first_token(ended)
            while decodes and decodes[0][0] - self._done <= LEFT:
                self._end(heapq.heappop(decodes)[2], ended)
            if self.waiting:
                self._admit()
            self._plan()
        return ended

    def _plan(self) -> None:
        """What steps are like from now on, and until when."""
        profile, decodes, tokens = self.profile, self._decodes, self._prompt_tokens
        step = profile.fixed + profile.per_request * len(decodes)
        event = math.inf
        if self._prompts:
            chunk = tokens if tokens < profile.budget else profile.budget
            step += profile.per_token * chunk
            event = self._prompt_left * step / chunk
            self._chunk = chunk
        if decodes:
            end = (decodes[0][0] - self._done) * step
            event = end if end < event else event
        self._step = step
        self.event = self.now + event
        self.wait = profile.per_token * tokens + TYPICAL * profile.per_request * self.load

    def _pass(self, to: float) -> None:
        steps = (to - self.now) / self._step
        self._done += steps
        if self._prompts:
            self._prompt_left -= steps * self._chunk
            self._prompt_tokens -= steps * self._chunk
        self.now = to

    def _first_token(self, ended: list[Request]) -> None:
        request = self._prompts.popleft()
        request.first = self.now
        self.first.append(request)
        self._prompt_tokens -= self._prompt_left  # what rounding left
        if self._prompts:
            self._prompt_left = self._prompts[0].prompt
        else:
            self._prompt_left = self._prompt_tokens = 0.0
        if request.completion == 1:
            self._end(request, ended)
            return
        self._numbers += 1
        heapq.heappush(self._decodes, (self._done + request.completion - 1, self._numbers, request))

    def _end(self, request: Request, ended: list[Request]) -> None:
        request.end = self.now
        self.load -= 1
        ended.append(request)

    def _admit(self) -> None:
        while self.waiting and len(self._prompts) + len(self._decodes) < self.profile.max_seqs:
            request = self.waiting.popleft()
            if not self._prompts:
                self._prompt_left = request.prompt
            self._prompts.append(request)
            self._prompt_tokens += request.prompt
