"""Which requests are traced: a ratio, or what OpenTelemetry's environment variables say.

The decision is that of OpenTelemetry's samplers, by the trace's id, so that all programs come to the same; it is made
here because theirs makes objects for each request, and nearly all requests are not traced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SAMPLER: Final = "OTEL_TRACES_SAMPLER"
ARGUMENT: Final = "OTEL_TRACES_SAMPLER_ARG"
_PARENT: Final = "parentbased_"
_RATIO: Final = "traceidratio"
_RATIOS: Final = {"always_on": 1.0, "always_off": 0.0, _RATIO: None}


@dataclass(frozen=True)
class Sampling:
    """Sampling by the id of a trace (OpenTelemetry's ``TraceIdRatioBased``)."""

    ratio: float = 1.0
    """The share of traces that begin here and are recorded, from 0 to 1."""
    parent_based: bool = True
    """The decision of whoever began the trace counts; ``ratio`` is for those that begin here."""

    @property
    def bound(self) -> int:
        """A trace is recorded where the last 64 bits of its id are less."""
        return round(self.ratio * 2**64)

    def samples(self, trace_id: int, parent_sampled: bool | None = None) -> bool:
        """Whether a request is recorded. ``parent_sampled``: what its client says; None: its trace begins here."""
        if self.parent_based and parent_sampled is not None:
            return parent_sampled
        return (trace_id & (1 << 64) - 1) < self.bound


def read_sampling(ratio: float | None, environment: Mapping[str, str]) -> Sampling:
    """The sampling that a flag asks for, or the environment; with neither every trace that begins here is recorded.

    Raises:
        ValueError: the environment names a sampler that does not exist, or no ratio.
    """
    if ratio is not None:
        return Sampling(ratio)
    name = environment.get(SAMPLER, "").strip().lower() or "parentbased_always_on"
    kind = name.removeprefix(_PARENT)
    if kind not in _RATIOS:
        known = ", ".join(f"{prefix}{each}" for each in _RATIOS for prefix in ("", _PARENT))
        raise ValueError(f"{SAMPLER}={name} is no sampler; there are {known}")
    found = _RATIOS[kind]
    if found is None:
        found = parse_ratio(environment.get(ARGUMENT, "1"), ARGUMENT)
    return Sampling(found, name.startswith(_PARENT))


def parse_ratio(text: str, name: str) -> float:
    """A number from 0 to 1.

    Raises:
        ValueError: it is none; the message begins with ``name``.
    """
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"{name}: {text!r} is no ratio from 0 to 1, like 0.01 for one request in a hundred")
    return ratio
