"""A model of one engine: continuous batching with chunked prefill, in events instead of steps.

A step computes one token of each decode and up to ``budget`` prompt tokens, first come first served, and takes
``fixed`` + ``per_request`` for each decode + ``per_token`` for each prompt token. Between two events (a request comes, a
prompt is done, a response ends) all steps are alike, so that decodes and prompts progress evenly.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final


LEFT: Final = 1e-5
"""Tokens that count as none: clocks are not as fine."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What an engine can do, in seconds."""

    fixed: float
    per_request: float
    per_token: float
    start: float
    """From a decision to an engine that answers."""
    budget: int = 2048
    max_seqs: int = 128


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
        return self.first - self.at

    @property
    def tpot(self) -> float:
        """0 for a response of one token."""
        return (self.end - self.first) / (self.completion - 1) if self.completion > 1 else 0.0


@dataclass(slots=True)
class Engine:
    """One engine at the time ``now``."""

    profile: Profile
    now: float
    done: float = 0.0
    """Tokens that a decode that was there all the time would have got."""
    decodes: list[tuple[float, int, Request]] = field(default_factory=list)
    """By what ``done`` will be at their ends."""
    prompts: deque[Request] = field(default_factory=deque)
    prompt_left: float = 0.0
    """Tokens of the first prompt."""
    prompt_tokens: float = 0.0
    """Of all prompts, that are left."""
    waiting: deque[Request] = field(default_factory=deque)
    draining: bool = False
    _numbers: int = 0

    @property
    def running(self) -> int:
        return len(self.decodes) + len(self.prompts)

    @property
    def load(self) -> int:
        """Requests that it has."""
        return self.running + len(self.waiting)

    def add(self, request: Request) -> None:
        """``request`` comes; :meth:`advance` was called for the present."""
        self.waiting.append(request)
        self._admit()

    def next_event(self) -> float:
        """When something changes next, if nothing comes."""
        step, chunk = self._step()
        event = math.inf
        if self.prompts:
            event = self.now + self.prompt_left * step / chunk
        if self.decodes:
            event = min(event, self.now + (self.decodes[0][0] - self.done) * step)
        return event

    def advance(self, to: float) -> list[Request]:
        """Compute until ``to``; the requests that ended."""
        ended: list[Request] = []
        while (event := self.next_event()) <= to:
            self._pass(event)
            if self.prompts and self.prompt_left <= LEFT:
                self._first_token(ended)
            while self.decodes and self.decodes[0][0] - self.done <= LEFT:
                _, _, request = heapq.heappop(self.decodes)
                request.end = self.now
                ended.append(request)
            self._admit()
        self._pass(to)
        return ended

    def _step(self) -> tuple[float, float]:
        """Seconds of a step, and prompt tokens in it."""
        chunk = min(self.profile.budget, self.prompt_tokens)
        profile = self.profile
        return profile.fixed + profile.per_request * len(self.decodes) + profile.per_token * chunk, max(chunk, 1e-9)

    def _pass(self, to: float) -> None:
        step, chunk = self._step()
        steps = (to - self.now) / step
        self.done += steps
        if self.prompts:
            self.prompt_left -= steps * chunk
            self.prompt_tokens -= steps * chunk
        self.now = to

    def _first_token(self, ended: list[Request]) -> None:
        request = self.prompts.popleft()
        request.first = self.now
        self.prompt_tokens = sum(each.prompt for each in self.prompts) if self.prompts else 0.0
        self.prompt_left = self.prompts[0].prompt if self.prompts else 0.0
        if request.completion == 1:
            request.end = self.now
            ended.append(request)
            return
        self._numbers += 1
        heapq.heappush(self.decodes, (self.done + request.completion - 1, self._numbers, request))

    def _admit(self) -> None:
        while self.waiting and self.running < self.profile.max_seqs:
            request = self.waiting.popleft()
            if not self.prompts:
                self.prompt_left = request.prompt
            self.prompts.append(request)
            self.prompt_tokens += request.prompt
