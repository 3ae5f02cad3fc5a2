"""Arrivals: how many requests a second, over an hour or two, and how long their prompts and responses are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.scaling.engine import Request

Rate = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens: medians, and the standard deviations of their logarithms."""

    prompt: float
    prompt_spread: float
    completion: float
    completion_spread: float
    most: int = 8192

    def draw(self, generator: random.Random) -> tuple[int, int]:
        """Of one request."""
        prompt = generator.lognormvariate(math.log(self.prompt), self.prompt_spread)
        completion = generator.lognormvariate(math.log(self.completion), self.completion_spread)
        return min(self.most, max(1, round(prompt))), min(self.most // 4, max(2, round(completion)))


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of an inhomogeneous Poisson process."""

    name: str
    seconds: float
    rate: Rate
    most: float
    """The rate is never higher."""
    lengths: Lengths

    def requests(self, seed: int = 1) -> list[Request]:
        """By thinning (Lewis and Shedler, 1979)."""
        generator = random.Random(f"{self.name} {seed}")
        at, found = 0.0, []
        while (at := at + generator.expovariate(self.most)) < self.seconds:
            if generator.random() * self.most < self.rate(at):
                found.append(Request(at, *self.lengths.draw(generator)))
        return found


def bursts(base: float, high: float, seed: int) -> Rate:
    """``base``, and bursts of ``high`` of one to four minutes every ten or so (a Markov-modulated process)."""
    generator = random.Random(seed)
    times, at = [], 0.0
    while at < 36_000:
        at += generator.expovariate(1 / 600)
        end = at + generator.uniform(60, 240)
        times.append((at, end))
        at = end
    return lambda t: high if any(start <= t < end for start, end in times) else base


def diurnal(low: float, high: float, period: float) -> Rate:
    """A day, in ``period`` seconds: night, a steep morning, two peaks."""

    def rate(t: float) -> float:
        hour = 24 * (t % period) / period
        day = math.exp(-(((hour - 11) / 3.0) ** 2)) + 0.8 * math.exp(-(((hour - 17) / 3.0) ** 2))
        return low + (high - low) * min(1.0, day)

    return rate


def flash_crowd(base: float, high: float, at: float, rise: float, fall: float) -> Rate:
    """``base``; at ``at`` within ``rise`` seconds ``high``, and back with the time constant ``fall``."""

    def rate(t: float) -> float:
        if t < at:
            return base
        if t < at + rise:
            return base + (high - base) * (t - at) / rise
        return base + (high - base) * math.exp(-(t - at - rise) / fall)

    return rate
