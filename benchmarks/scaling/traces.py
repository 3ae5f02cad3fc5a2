"""Arrivals: how many requests a second, over an hour or two, and how long their prompts and responses are.

What is published of real services, and what is taken from it here:

- Azure's LLM traces of 2023 (Patel et al., Splitwise, ISCA 2024, figure 3; the files are in Azure/AzurePublicDataset).
  Conversation: median prompt 1,020 tokens, median response 129; their means are 1,155 and 211. Code completion: medians
  1,500 and 13, means 2,048 and 28. A log-normal distribution with that median and mean has the spread
  sqrt(2 ln(mean / median)): 0.50 and 0.99, 0.79 and 1.24.
- BurstGPT (Wang et al., arXiv:2401.17644): arrivals come in clusters; its generator draws the times between them from a
  Gamma distribution of shape 0.5, whose coefficient of variation is 1.4 (a Poisson process has 1).

A trace is drawn anew for each seed: the requests, and when bursts and crowds come and how large they are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.scaling.engine import SETTLED, Request

Rate = Callable[[float], float]
"""From seconds to requests a second."""

POISSON: Final = 1.0
BURSTGPT_SHAPE: Final = 0.5
"""Of the Gamma distribution of the times between arrivals."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens: medians, and the standard deviations of their logarithms."""

    prompt: float
    prompt_spread: float
    completion: float
    completion_spread: float
    most: int = 16_384

    def draw(self, generator: random.Random) -> tuple[int, int]:
        """Of one request."""
        prompt = generator.lognormvariate(math.log(self.prompt), self.prompt_spread)
        completion = generator.lognormvariate(math.log(self.completion), self.completion_spread)
        return min(self.most, max(1, round(prompt))), min(self.most // 4, max(2, round(completion)))


CONVERSATION: Final = Lengths(1020, 0.50, 129, 0.99)
LONG: Final = Lengths(1500, 0.79, 129, 0.99)
"""Prompts as of code completion, responses as of conversation."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests whose rate changes with time."""

    name: str
    seed: int
    seconds: float
    rate: Rate
    lengths: Lengths = CONVERSATION
    shape: float = POISSON
    """Of the Gamma distribution of the times between arrivals."""

    def requests(self) -> list[Request]:
        """The same ones at each call, without what became of them."""
        generator = random.Random(f"{self.name} {self.seed}")
        at, found = 0.0, list[Request]()
        while True:
            # A renewal process whose clock runs as fast as requests come.
            at += generator.gammavariate(self.shape, 1.0 / self.shape) / self.rate(at)
            if at >= self.seconds:
                return found
            found.append(Request(at, *self.lengths.draw(generator)))


def bursts(seed: int) -> Trace:
    """A steady service, and bursts of one to four minutes to twice as much that begin as a Poisson process does, every
    ten minutes or so: a Markov-modulated Poisson process."""
    generator = random.Random(f"bursts {seed}")
    times, at = [], 0.0
    while at < SETTLED + 3600:
        at += generator.expovariate(1 / 600)
        end = at + generator.uniform(60, 240)
        times.append((at, end))
        at = end
    return Trace(
        "bursts", seed, SETTLED + 3600, lambda t: 24.0 if any(start <= t < end for start, end in times) else 12.0
    )


def diurnal(seed: int) -> Trace:
    """A day in an hour: night, a steep morning, two peaks; six times as much at noon as at night. Changes are 24
    times as fast as a real day's."""
    period, low, high = 3600.0, 4.0, 24.0

    def rate(t: float) -> float:
        hour = 24 * ((t - SETTLED) % period) / period
        day = math.exp(-(((hour - 11) / 3.0) ** 2)) + 0.8 * math.exp(-(((hour - 17) / 3.0) ** 2))
        return low + (high - low) * min(1.0, day)

    return Trace("diurnal", seed, SETTLED + period, rate)


def flash_crowd(seed: int) -> Trace:
    """A steady service that three to five times as many suddenly want, within two minutes; they leave over half an
    hour."""
    generator = random.Random(f"flash {seed}")
    base, at, times = 8.0, SETTLED + generator.uniform(300, 1200), generator.uniform(3, 5)
    rise, fall = 120.0, 600.0

    def rate(t: float) -> float:
        if t < at:
            return base
        if t < at + rise:
            return base + base * (times - 1) * (t - at) / rise
        return base + base * (times - 1) * math.exp(-(t - at - rise) / fall)

    return Trace("flash_crowd", seed, SETTLED + 2700, rate)


def heavy_tails(seed: int) -> Trace:
    """Prompts as long as Azure's code completions, in BurstGPT's clusters, at a rate that wanders: its
    logarithm is an autoregressive process with a standard deviation of 0.3 and a memory of ten minutes."""
    generator = random.Random(f"wander {seed}")
    part, keeps = 30.0, math.exp(-30.0 / 600.0)
    levels = [0.0]
    while len(levels) * part <= SETTLED + 3600 + part:
        levels.append(keeps * levels[-1] + generator.gauss(0.0, 0.3 * math.sqrt(1 - keeps * keeps)))

    def rate(t: float) -> float:
        index, rest = divmod(t / part, 1.0)
        return 10.0 * math.exp(levels[int(index)] * (1 - rest) + levels[int(index) + 1] * rest)

    return Trace("heavy_tails", seed, SETTLED + 3600, rate, lengths=LONG, shape=BURSTGPT_SHAPE)


TRACES: Final[tuple[Callable[[int], Trace], ...]] = (bursts, diurnal, flash_crowd, heavy_tails)
