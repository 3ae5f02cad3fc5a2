"""What one engine can do, learnt from the load and the latencies that were measured.

An engine computes steps: each takes ``fixed`` seconds, ``per_request`` for each decode in it, and ``per_token`` for
each prompt token. With ``g`` completion tokens and ``q`` prompt tokens a second to compute, it has g * TPOT decodes
in a step (Little's law) and q * TPOT prompt tokens, so that

    TPOT = fixed + per_request * g * TPOT + per_token * q * TPOT,    or    1 = fixed / TPOT + per_request * g +
    per_token * q.

The three are the non-negative least squares of the latter over all measurements, of which older ones weigh less, and of
a guess, which decides where the load never changed: only the sum of the last two is known then, and only it matters.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Final, cast

from blade_operator.scaling.load import Load

FORGETTING: Final = 0.995
"""Weight of what was known, at each new measurement: half of it is gone after 140."""
LEAST_MEASUREMENTS: Final = 6
"""Before these nothing is predicted."""
_GUESS: Final = (0.5, 0.2, 0.3)
"""Shares of the three in the first measurement."""
_GUESS_WEIGHT: Final = 0.02
"""Of the guess, beside one of a measurement."""
_CORRECTION: Final = 0.05
"""Share of a new measurement in what latencies are at the promised percentile."""

Vector = tuple[float, float, float]
Products = tuple[float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Demand:
    """What one engine is to do."""

    arrivals: float
    """Requests a second."""
    prompt: float
    """Tokens of each request that are computed."""
    completion: float
    """Tokens of each response."""

    @classmethod
    def of(cls, load: Load, engines: int, arrivals: float | None = None) -> Demand:
        """Of ``load`` on so many engines, with ``arrivals`` a second instead of its own."""
        own = max(load.arrivals, 1e-9)
        rate = load.arrivals if arrivals is None else arrivals
        return cls(rate / engines, load.prompt_tokens / own, load.completion_tokens / own)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds that are to be expected; infinite beyond what an engine can do."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """The speed of one engine of a service, as far as it is known."""

    scale: Vector = (1.0, 1.0, 1.0)
    """Each input at the first measurement: in these units all of them are near one."""
    products: Products = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    """Weighted sums of the inputs' products: 00, 01, 02, 11, 12, 22."""
    sums: Vector = (0.0, 0.0, 0.0)
    """Of the inputs."""
    weights: Vector = _GUESS
    measurements: int = 0
    ttft: float = 0.0
    """Seconds to the first token of a request that an engine has for itself; 0: nothing was measured yet."""
    tail: float = 1.0
    """TPOT at the percentile that is promised, over its median."""

    @property
    def fixed(self) -> float:
        """Seconds of a step without anything in it."""
        return self.weights[0] / self.scale[0]

    @property
    def per_request(self) -> float:
        """Seconds that each decode adds to a step."""
        return self.weights[1] / self.scale[1]

    @property
    def per_token(self) -> float:
        """Seconds that each prompt token adds to a step."""
        return self.weights[2] / self.scale[2]

    @property
    def is_known(self) -> bool:
        """Whether it can predict."""
        return self.measurements >= LEAST_MEASUREMENTS

    def learn(self, load: Load) -> Capacity:
        """With what ``load`` says, whose last minute is to have been like the present. Only engines that compute say
        anything."""
        tpot = load.mean_tpot
        if not load.ready or not tpot or not math.isfinite(tpot) or load.running <= 0:
            return self
        inputs = (1.0 / tpot, load.completion_tokens / load.ready, load.prompt_tokens / load.ready)
        own = self
        if not self.measurements:
            own = replace(self, scale=(inputs[0], max(inputs[1], 1.0), max(inputs[2], 1.0)))
        scaled = (inputs[0] / own.scale[0], inputs[1] / own.scale[1], inputs[2] / own.scale[2])
        return own._fitted(scaled)._with_latencies(load)

    def busy(self, demand: Demand) -> float:
        """Share of its time in which one engine computes what requests add to steps; 1: it does not keep up."""
        prompts = self.per_token * demand.arrivals * demand.prompt
        return prompts + self.per_request * demand.arrivals * demand.completion

    def predict(self, demand: Demand) -> Latencies:
        """Latencies of one engine, at the percentile that was measured."""
        busy = self.busy(demand)
        if busy >= 1.0:
            return Latencies(math.inf, math.inf)
        # Prompts are computed one after the other: a wait as of M/G/1, whose tail falls exponentially.
        wait = max(0.0, math.log(5.0 * busy)) if busy > 0.0 else 0.0
        return Latencies(self.ttft * (1.0 + wait) / (1.0 - busy), self.fixed * self.tail / (1.0 - busy))

    def _fitted(self, inputs: Vector) -> Capacity:
        """With one more measurement."""
        pairs = itertools.combinations_with_replacement(inputs, 2)
        products = tuple(FORGETTING * old + one * other for old, (one, other) in zip(self.products, pairs, strict=True))
        sums = tuple(FORGETTING * old + each for old, each in zip(self.sums, inputs, strict=True))
        return replace(
            self,
            products=cast(Products, products),
            sums=cast(Vector, sums),
            weights=_least_squares(products, sums),
            measurements=self.measurements + 1,
        )

    def _with_latencies(self, load: Load) -> Capacity:
        """With what is measured while nothing is queued: of a queue the number of engines is the cause."""
        if not self.is_known or load.queued >= 1.0 or load.arrivals <= 0.0:
            return self
        plain = replace(self, ttft=1.0, tail=1.0).predict(Demand.of(load, load.ready))
        return replace(
            self,
            ttft=_moved(self.ttft, load.ttft, plain.ttft, self.ttft or None),
            tail=_moved(self.tail, load.tpot, plain.tpot, 1.0),
        )


def _moved(known: float, measured: float | None, predicted: float, first: float | None) -> float:
    """``known``, a bit nearer to ``measured`` / ``predicted``; that itself if nothing is known (``first`` None)."""
    if not measured or not math.isfinite(measured) or not math.isfinite(predicted) or predicted <= 0.0:
        return known
    ratio = measured / predicted
    return ratio if first is None else known + _CORRECTION * (ratio - known)


def _least_squares(products: tuple[float, ...], sums: tuple[float, ...]) -> Vector:
    """Non-negative weights whose sums with the inputs are near one, and which are near the guess."""
    matrix = [[0.0] * 3 for _ in range(3)]
    for (row, column), product in zip(itertools.combinations_with_replacement(range(3), 2), products, strict=True):
        matrix[row][column] = matrix[column][row] = product
    for index in range(3):
        matrix[index][index] += _GUESS_WEIGHT
    right = [total + _GUESS_WEIGHT * guess for total, guess in zip(sums, _GUESS, strict=True)]
    active = [0, 1, 2]
    # Weights below zero leave one after the other: of three that is the optimum but for rare corners.
    while True:
        found = _solve([[matrix[i][j] for j in active] for i in active], [right[i] for i in active])
        worst = min(range(len(active)), key=found.__getitem__)
        if found[worst] >= 0.0 or len(active) == 1:
            break
        del active[worst]
    weights = [0.0, 0.0, 0.0]
    for index, weight in zip(active, found, strict=True):
        weights[index] = max(0.0, weight)
    return weights[0], weights[1], weights[2]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a positive definite system, by Gaussian elimination."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = rows[row][pivot] / rows[pivot][pivot]
            rows[row] = [a - factor * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution
