"""One benchmark from beginning to end: query the server, make prompts, warm up, put the load on, sum up."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blade_llm.benchmark.calibration import calibrate
from blade_llm.benchmark.client.client import Client
from blade_llm.benchmark.client.measurement import Measurement
from blade_llm.benchmark.client.target import Target, parse_address
from blade_llm.benchmark.inputs import make_samples
from blade_llm.benchmark.load import Limit, Load
from blade_llm.benchmark.options import Options
from blade_llm.benchmark.report.summary import Summary, summarize
from blade_llm.benchmark.sweep import Probe, Prober, find_rate
from blade_llm.benchmark.workload.arrivals import arrival_times
from blade_llm.benchmark.workload.datasets import Sample


class ProgressListener:
    """Is notified of what happens; the default shows nothing."""

    def ready(self, target: Target) -> None:
        """The server responds; the load begins."""

    def stage(self, name: str, requests: float, seconds: float) -> None:
        """A load with these limits on requests and seconds begins."""

    def change(self, load: Load) -> None:
        """A request was sent or has ended."""

    def probed(self, probe: Probe) -> None:
        """A rate has been tried."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a session."""

    target: Target
    summary: Summary | None = None
    """Summary of the load; of a sweep, that of the highest rate that passed, or else of the last one tried."""
    probes: list[Probe] = field(default_factory=list)
    best_rate: float | None = None
    stopped: bool = False
    """Whether Ctrl-C stopped it."""


async def run_session(options: Options, listener: ProgressListener) -> Outcome:
    """Raises :class:`BenchmarkError` when it cannot begin. Ctrl-C ends the load, not the session."""
    target = Target(
        address=parse_address(options.base_url),
        endpoint=options.endpoint,
        model=options.model or "",
        api_key=options.api_key,
        temperature=options.temperature,
        ignore_eos=options.ignore_eos,
        extra=options.extra_body,
    )
    client = Client(target.address, timeout=options.timeout)
    try:
        return await _Session(options, listener, client, random.Random(options.seed)).run(target)
    finally:
        client.close()


@dataclass(slots=True)
class _Session:
    options: Options
    listener: ProgressListener
    client: Client
    random_source: random.Random

    async def run(self, target: Target) -> Outcome:
        if not target.model:
            target = replace(target, model=await self.client.served_model(target))
        found = await calibrate(self.client, target)
        samples, notes = await make_samples(self.options, self.client, found, self.random_source)
        self.listener.ready(found.target)
        outcome = Outcome(found.target)
        measure = self._sweep if self.options.find_rate else self._measure
        outcome.stopped = await _until_interrupted(measure(outcome, samples, [*found.notes, *notes]))
        return outcome

    async def _measure(self, outcome: Outcome, samples: Iterator[Sample], notes: Sequence[str]) -> None:
        options = self.options
        await self._warm_up(outcome.target, samples)
        seconds = float("inf") if options.duration is None else options.duration
        limit = Limit(options.total_requests, seconds)
        self.listener.stage("measuring", limit.requests, limit.seconds)
        load = self._new_load(outcome.target)
        try:
            if options.request_rate is None:
                await load.closed_loop(samples, options.users, limit)
            else:
                arrivals = arrival_times(options.request_rate, options.burstiness, self.random_source)
                await load.open_loop(samples, arrivals, limit)
        finally:
            outcome.summary = self._summary(outcome.target, load, notes)

    async def _sweep(self, outcome: Outcome, samples: Iterator[Sample], notes: Sequence[str]) -> None:
        options = self.options
        await self._warm_up(outcome.target, samples)
        prober = Prober(
            new_load=lambda: self._new_load(outcome.target),
            samples=samples,
            objectives=options.slo,
            attainment=options.attainment,
            requests=options.probe_requests,
            seconds=options.probe_seconds,
            burstiness=options.burstiness,
            random_source=self.random_source,
        )

        async def passes(rate: float) -> bool:
            self.listener.stage(f"{rate:.2f} requests/s", sum(prober.planned(rate)), float("inf"))
            probe, load = await prober.probe(rate)
            outcome.probes.append(probe)
            self.listener.probed(probe)
            best = probe.passed and rate > (outcome.best_rate or 0.0)
            if best:
                outcome.best_rate = rate
            if best or outcome.best_rate is None:
                outcome.summary = self._summary(outcome.target, load, notes)
            return probe.passed

        outcome.best_rate = await find_rate(passes, options.request_rate or 1.0, options.rate_precision)

    async def _warm_up(self, target: Target, samples: Iterator[Sample]) -> None:
        count = self.options.warm_up_requests
        if count:
            self.listener.stage("warming up", count, float("inf"))
            await self._new_load(target).closed_loop(samples, count, Limit(count))

    def _new_load(self, target: Target) -> Load:
        async def send(sample: Sample, due: float) -> Measurement:
            return await self.client.measure(target, sample, due)

        return Load(send, self.client.clock, on_change=self.listener.change)

    def _summary(self, target: Target, load: Load, notes: Sequence[str]) -> Summary:
        settings = {
            "url": target.url,
            "model": target.model,
            "load": self.options.load_text,
            "prompts": self.options.prompts_text,
            "seed": self.options.seed,
        }
        return summarize(load, settings, self.options.slo, notes)


async def _until_interrupted(work: Coroutine[Any, Any, None]) -> bool:
    """Whether Ctrl-C ended ``work``, which then has been cancelled."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await task
    except asyncio.CancelledError:
        if not interrupted:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return interrupted
