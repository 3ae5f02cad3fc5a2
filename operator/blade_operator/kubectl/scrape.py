"""Reads the pages of pods: Prometheus metrics, and JSON."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from blade_operator.cli.errors import CommandError
from blade_operator.kubectl.places.place import Reached

TIMEOUT = 5.0
"""Seconds for one page."""
MOST_BYTES = 16 * 1024 * 1024

Labels = Mapping[str, str]


class Scrape:
    """Samples of one page of metrics, by name."""

    def __init__(self, text: str) -> None:
        self._samples: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def of(self, name: str) -> Iterator[tuple[Labels, float]]:
        """Labels and value of each sample called ``name``."""
        yield from self._samples.get(name, ())

    def sum(self, name: str, **labels: str) -> float:
        """The sum over all samples that have ``labels``."""
        return math.fsum(value for own, value in self.of(name) if labels.items() <= own.items())

    def has(self, name: str) -> bool:
        """Whether there is a sample called ``name``."""
        return name in self._samples

    def buckets(self, name: str) -> dict[float, float]:
        """A histogram: upper bound and cumulative count, summed over its labels."""
        found: defaultdict[float, float] = defaultdict(float)
        for labels, value in self.of(f"{name}_bucket"):
            found[float(labels["le"])] += value
        return dict(found)


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """The value below which ``share`` of a histogram lies, as Prometheus' ``histogram_quantile`` estimates it.

    None for an empty one. What lies beyond the last finite bound counts as that bound.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank, below, lower = share * total, 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank:
            if math.isinf(bound):
                return lower
            inside = count - below
            return bound if inside <= 0 else lower + (bound - lower) * (rank - below) / inside
        below, lower = count, bound
    return lower


def fetch(reached: Reached, path: str, timeout: float = TIMEOUT) -> bytes:
    """A page of a pod, at most 16 MiB of it. Raises `CommandError` when there is none."""
    try:
        with httpx.stream("GET", f"http://{reached.authority}{path}", timeout=timeout, trust_env=False) as response:
            if not response.is_success:
                raise CommandError(f"{path} answered {response.status_code}")
            parts, size = list[bytes](), 0
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    raise CommandError(f"{path} has more than {MOST_BYTES} bytes")
    except httpx.HTTPError as error:
        raise CommandError(f"{path} did not answer: {reached.problem or error or type(error).__name__}") from error
    return b"".join(parts)


def scrape(reached: Reached, path: str) -> Scrape:
    """A page of metrics. Raises `CommandError` when there is none, or it is something else."""
    try:
        return Scrape(fetch(reached, path).decode(errors="replace"))
    except (ValueError, KeyError) as error:
        raise CommandError(f"{path} is no page of metrics: {error}") from error


def load_json(reached: Reached, path: str) -> Any:
    """A page of JSON. Raises `CommandError` when there is none, or it is something else."""
    try:
        return json.loads(fetch(reached, path))
    except ValueError as error:
        raise CommandError(f"{path} is no JSON: {error}") from error
