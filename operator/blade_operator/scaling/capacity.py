"""What one engine can do, learnt from the load and the latencies that were measured.

An engine computes steps: each takes ``fixed`` seconds, ``per_request`` for each decode in it, and ``per_token`` for
each prompt token. With ``g`` completion tokens and ``q`` prompt tokens a second to compute, an engine is busy for
``per_token * q`` of its time with prompts, and its decodes take, by Little's law,

    TPOT = fixed / (1 - per_token * q - per_request * g).

The three are fitted by recursive least squares with exponential forgetting (Ljung, System Identification, 11.2), to
TPOT = fixed + per_request * n + per_token * (q * TPOT), where n is the mean number of decodes in an engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from blade_operator.scaling.load import Load

FORGETTING: Final = 0.995
"""Weight of what was known, at each new measurement: half of it is gone after 140."""
LEAST_MEASUREMENTS: Final = 12
"""Before these nothing is predicted."""
_PRIOR: Final = 1e3
"""Variance of each number before anything was measured, in units of the first measurement."""
_MOST_VARIANCE: Final = 1e6
_CORRECTION: Final = 0.1
"""Share of a new measurement in the corrections."""
_LEAST_CORRECTION: Final = 0.5
_MOST_CORRECTION: Final = 4.0

Vector = tuple[float, float, float]


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
    running: float
    """Requests in the engine."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The speed of one engine of a service, as far as it is known."""

    scale: Vector = (1.0, 1.0, 1.0)
    """The first measurement's TPOT, and that over its n and q * TPOT: in these units all three numbers are near one."""
    weights: Vector = (0.4, 0.3, 0.3)
    covariance: tuple[Vector, Vector, Vector] = ((_PRIOR, 0.0, 0.0), (0.0, _PRIOR, 0.0), (0.0, 0.0, _PRIOR))
    measurements: int = 0
    ttft_correction: float = 1.0
    """Measured over predicted."""
    tpot_correction: float = 1.0

    @property
    def fixed(self) -> float:
        """Seconds of a step without anything in it."""
        return self.weights[0] * self.scale[0]

    @property
    def per_request(self) -> float:
        """Seconds that each decode adds to a step."""
        return self.weights[1] * self.scale[1]

    @property
    def per_token(self) -> float:
        """Seconds that each prompt token adds to a step."""
        return self.weights[2] * self.scale[2]

    @property
    def is_known(self) -> bool:
        """Whether it can predict."""
        return self.measurements >= LEAST_MEASUREMENTS

    def learn(self, load: Load) -> Capacity:
        """With what ``load`` says. Only engines that compute say anything."""
        tpot = load.mean_tpot
        if not load.ready or not tpot or not math.isfinite(tpot) or load.running <= 0:
            return self
        decodes, prompts = load.running / load.ready, load.prompt_tokens / load.ready * tpot
        own = (
            self
            if self.measurements
            else replace(self, scale=(tpot, tpot / max(decodes, 1.0), tpot / max(prompts, 1.0)))
        )
        inputs = (own.scale[0], own.scale[1] * decodes, own.scale[2] * prompts)
        relative = tuple(each / tpot for each in inputs)
        return own._fitted((relative[0], relative[1], relative[2]), 1.0)._corrected(load)

    def predict(self, demand: Demand) -> Latencies:
        """Latencies of one engine: the means of TPOT, and the time that nine of ten requests wait at most."""
        prompts = self.per_token * demand.arrivals * demand.prompt
        busy = prompts + self.per_request * demand.arrivals * demand.completion
        if busy >= 1.0:
            return Latencies(math.inf, math.inf, math.inf)
        tpot = self.fixed / (1.0 - busy)
        running = demand.arrivals * demand.completion * tpot
        own = self.per_token * demand.prompt
        # Prompts are computed one after the other: the wait of M/G/1, whose tail falls exponentially.
        wait = own / (1.0 - busy) * math.log(10.0 * prompts) if prompts > 0.1 else 0.0
        ttft = 1.5 * tpot + own / (1.0 - busy) + wait
        return Latencies(ttft * self.ttft_correction, tpot * self.tpot_correction, running)

    def _fitted(self, inputs: Vector, output: float) -> Capacity:
        """One step of recursive least squares. No number falls below 0: none of them can."""
        gain = tuple(sum(row[i] * inputs[i] for i in range(3)) for row in self.covariance)
        denominator = FORGETTING + sum(gain[i] * inputs[i] for i in range(3))
        error = output - sum(self.weights[i] * inputs[i] for i in range(3))
        weights = tuple(max(0.0, self.weights[i] + gain[i] / denominator * error) for i in range(3))
        rows = [
            tuple((self.covariance[i][j] - gain[i] * gain[j] / denominator) / FORGETTING for j in range(3))
            for i in range(3)
        ]
        # Where the load never changes, forgetting would let the variance of what is not seen grow for ever.
        largest = max(rows[i][i] for i in range(3))
        shrink = min(1.0, _MOST_VARIANCE / largest)
        covariance = tuple(tuple(each * shrink for each in row) for row in rows)
        return replace(self, weights=weights, covariance=covariance, measurements=self.measurements + 1)

    def _corrected(self, load: Load) -> Capacity:
        """With how far predictions are off while nothing is queued: of a queue the number of engines is the cause."""
        if not self.is_known or load.queued >= 1.0 or load.arrivals <= 0.0:
            return self
        plain = replace(self, ttft_correction=1.0, tpot_correction=1.0).predict(Demand.of(load, load.ready))
        return replace(
            self,
            ttft_correction=_moved(self.ttft_correction, load.ttft, plain.ttft),
            tpot_correction=_moved(self.tpot_correction, load.tpot, plain.tpot),
        )


def _moved(correction: float, measured: float | None, predicted: float) -> float:
    if not measured or not math.isfinite(measured) or not math.isfinite(predicted) or predicted <= 0.0:
        return correction
    moved = correction + _CORRECTION * (measured / predicted - correction)
    return min(_MOST_CORRECTION, max(_LEAST_CORRECTION, moved))
