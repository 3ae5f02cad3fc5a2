"""Load of services and engines, measured from the metrics of their pods: two scrapes make a rate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from blade_operator.cli.errors import CommandError
from blade_operator.kubectl.places.place import Place, Reached
from blade_operator.kubectl.pods import pods_of
from blade_operator.kubectl.scrape import Scrape, load_json, quantile, scrape
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_protocol import metrics, paths
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER

WINDOW: Final = 60.0
"""Seconds over which rates and percentiles are taken."""
MEMORY: Final = "blade_llm_memory_bytes"
"""Gauge of an engine's memory by purpose; ``free`` is not in use."""
_SCRAPES_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """What the pods of a service said at one time; who did not respond is absent."""

    time: float
    routers: dict[str, Scrape]
    engines: dict[str, Scrape]
    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    """A router's view of each engine."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a service or an engine. Times in seconds; None: not known, or nothing was measured."""

    name: str
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    hit_ratio: float | None = None
    """Prompt tokens that came from the prefix cache, of all."""
    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    """Generated ones."""
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    tpot_p99: float | None = None
    memory_bytes: float | None = None
    """Of the devices, in use."""
    state: str = ""


class Monitor:
    """Measures one service again and again, over connections that stay. Use it as a context manager."""

    def __init__(self, place: Place, service: Object) -> None:
        self._place = place
        self.service = service
        self._stack = ExitStack()
        self._ways: dict[str, Reached] = {}
        self._pool = ThreadPoolExecutor(_SCRAPES_AT_ONCE)
        self.samples: deque[Sample] = deque()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    def measure(self) -> Sample:
        """Take a sample, and forget those that the window needs no more; a rate takes two, however far apart."""
        pods = [pod for pod in pods_of(self._place, self.service, ROLE_ROUTER, ROLE_ENGINE) if _runs(pod)]
        routers = [pod for pod in pods if podutil.role(pod) == ROLE_ROUTER]
        engines = [pod for pod in pods if podutil.role(pod) == ROLE_ENGINE]
        problems = list[str]()

        def page(pod: Object, port: str, read: Callable[[Reached, str], Any], path: str) -> Any:
            try:
                return read(self._way(pod, port), path)
            except CommandError as error:
                problems.append(f"{pod['metadata']['name']}: {error}")
                return None

        pages = [(pod, "admin", scrape, paths.METRICS) for pod in routers]
        pages += [(pod, "http", scrape, paths.METRICS) for pod in engines]
        found = list(self._pool.map(lambda each: page(*each), pages))
        named = [(pod["metadata"]["name"], each) for (pod, *_), each in zip(pages, found, strict=True)]
        status = page(routers[0], "admin", load_json, paths.STATUS) if routers else None
        sample = Sample(
            time=time.monotonic(),
            routers={name: each for name, each in named[: len(routers)] if each is not None},
            engines={name: each for name, each in named[len(routers) :] if each is not None},
            endpoints={each["name"]: each for each in (status or {}).get("endpoints", ())},
            problems=tuple(problems),
        )
        self.samples.append(sample)
        while len(self.samples) > 2 and self.samples[1].time <= sample.time - WINDOW:
            self.samples.popleft()
        return sample

    def loads(self, *, since_start: bool = False) -> list[Load]:
        """The service's load, then that of each engine. ``since_start``: percentiles since the pods started."""
        first, last = self.samples[0], self.samples[-1]
        names = sorted({*last.engines, *last.endpoints})
        engines = [_engine(name, first, last, since_start) for name in names]
        return [_service(self.service, first, last, engines, since_start), *engines]

    def _way(self, pod: Object, port: str) -> Reached:
        uid = f"{pod['metadata'].get('uid', pod['metadata']['name'])}/{port}"
        if uid not in self._ways:
            self._ways[uid] = self._stack.enter_context(self._place.reach(pod, port))
        return self._ways[uid]


def _runs(pod: Object) -> bool:
    return any(state.running and not state.init for state in podutil.containers(pod))


def _service(service: Object, first: Sample, last: Sample, engines: Sequence[Load], since_start: bool) -> Load:
    now = list(last.routers.values())
    before = [first.routers.get(name) for name in last.routers]
    queued = sum(scrape.sum(metrics.ROUTER_QUEUE_REQUESTS) + scrape.sum(metrics.ROUTER_HELD) for scrape in now)
    ratios = [value for scrape in now for _, value in scrape.of(metrics.ROUTER_HIT_RATIO)]
    ttft = _spread(metrics.ROUTER_TTFT_STREAM, now, before, since_start)
    tpot = _spread(metrics.ROUTER_TPOT, now, before, since_start)
    seconds, known = last.time - first.time, bool(now) and last is not first
    usages = [each.kv_usage for each in engines if each.kv_usage is not None]
    memory = [each.memory_bytes for each in engines if each.memory_bytes is not None]
    # Engines count tokens as they come, routers when a request has ended.
    tokens = [each.tokens_per_second for each in engines if each.tokens_per_second is not None]
    status = service.get("status", {})
    return Load(
        name=service["metadata"]["name"],
        running=_total(each.running for each in engines),
        waiting=_total([*(each.waiting for each in engines), int(queued) if now else None]),
        kv_usage=sum(usages) / len(usages) if usages else None,
        hit_ratio=max(ratios, default=None) if len(ratios) == 1 else _hits(engines),
        requests_per_second=_rate(f"{metrics.ROUTER_REQUESTS}_total", now, before, seconds) if known else None,
        tokens_per_second=sum(tokens)
        if tokens
        else _rate(f"{metrics.ROUTER_TOKENS}_total", now, before, seconds, kind="completion")
        if known
        else None,
        ttft_p50=ttft[0],
        ttft_p99=ttft[1],
        tpot_p50=tpot[0],
        tpot_p99=tpot[1],
        memory_bytes=sum(memory) if memory else None,
        state=f"{status.get('readyReplicas', 0)}/{status.get('desiredReplicas', 0)} {status.get('phase', 'Pending')}",
    )


def _hits(engines: Sequence[Load]) -> float | None:
    ratios = [each.hit_ratio for each in engines if each.hit_ratio is not None]
    return sum(ratios) / len(ratios) if ratios else None


def _engine(name: str, first: Sample, last: Sample, since_start: bool) -> Load:
    endpoint, now = last.endpoints.get(name, {}), last.engines.get(name)
    if now is None:
        return Load(
            name=name,
            running=endpoint.get("running"),
            waiting=endpoint.get("waiting"),
            kv_usage=endpoint.get("kv_usage"),
            state=_endpoint_state(endpoint),
        )
    before = first.engines.get(name)
    start = None if since_start else before
    prompt = _growth(f"{metrics.ENGINE_PROMPT_TOKENS}_total", now, start)
    cached = _growth(f"{metrics.ENGINE_CACHED_TOKENS}_total", now, start)
    known, seconds = before is not None and last is not first, last.time - first.time
    ttft = _spread(metrics.ENGINE_TTFT, [now], [before], since_start)
    tpot = _spread(metrics.ENGINE_TPOT, [now], [before], since_start)
    in_use = [value for labels, value in now.of(MEMORY) if labels.get("purpose") != "free"]
    return Load(
        name=name,
        running=int(now.sum(metrics.ENGINE_RUNNING)),
        waiting=int(now.sum(metrics.ENGINE_WAITING)),
        kv_usage=now.sum(metrics.ENGINE_KV_USAGE) if now.has(metrics.ENGINE_KV_USAGE) else None,
        hit_ratio=cached / prompt if prompt else None,
        requests_per_second=_rate(f"{metrics.ENGINE_REQUESTS}_total", [now], [before], seconds) if known else None,
        tokens_per_second=_rate(f"{metrics.ENGINE_GENERATION_TOKENS}_total", [now], [before], seconds)
        if known
        else None,
        ttft_p50=ttft[0],
        ttft_p99=ttft[1],
        tpot_p50=tpot[0],
        tpot_p99=tpot[1],
        memory_bytes=sum(in_use) if in_use else None,
        state=_endpoint_state(endpoint),
    )


def _endpoint_state(endpoint: dict[str, Any]) -> str:
    """What the router thinks of an engine."""
    if not endpoint:
        return "not routed to"
    if endpoint.get("ejected_for"):
        return "ejected"
    if endpoint.get("draining"):
        return "draining"
    return {True: "up", False: "down"}.get(endpoint.get("up"), "not checked yet")  # type: ignore[arg-type]


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _growth(name: str, now: Scrape, before: Scrape | None, **labels: str) -> float:
    """How much a counter has grown; one that was reset meanwhile counts from 0."""
    value = now.sum(name, **labels)
    earlier = before.sum(name, **labels) if before is not None else 0.0
    return value - earlier if value >= earlier else value


def _rate(
    name: str, now: Sequence[Scrape], before: Sequence[Scrape | None], seconds: float, **labels: str
) -> float | None:
    """Growth a second of a counter, summed over the pods that were there at both times."""
    pairs = [(one, other) for one, other in zip(now, before, strict=True) if other is not None]
    if not pairs or seconds <= 0:
        return None
    return sum(_growth(name, one, other, **labels) for one, other in pairs) / seconds


def _spread(
    name: str, now: Sequence[Scrape], before: Sequence[Scrape | None], since_start: bool
) -> tuple[float | None, float | None]:
    """p50 and p99 of a histogram, over all pods together."""
    total: dict[float, float] = {}
    for one, other in zip(now, before, strict=True):
        earlier = other.buckets(name) if other is not None and not since_start else {}
        for bound, value in one.buckets(name).items():
            grown = value - earlier.get(bound, 0.0)
            total[bound] = total.get(bound, 0.0) + (grown if grown >= 0 else value)
    return quantile(0.5, total), quantile(0.99, total)
