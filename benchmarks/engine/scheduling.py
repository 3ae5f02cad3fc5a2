"""The scheduler's policies on simulated devices: ``python -m benchmarks.engine.scheduling``.

The real scheduler plans every step; in place of the model there is a device on a virtual clock, whose steps cost a
fixed time, more where they replay no graph, and more for each token. Each row is one load, played twice: first come,
first served (for the first row: the cost of a mixed step charged to its tokens alone; for the second: every mixed step
launched kernel by kernel), and as the engine does it. Short prompts must get their first token sooner at the 99th
percentile, and the device may work 2 % longer for them all. The same on every machine.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from benchmarks.figures import Figure, report
from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.admission import FIRST_COME_FIRST_SERVED, AdmissionPolicy
from blade_llm.scheduling.budget.prefill import CPU_MIN_CHUNK, GPU_MIN_CHUNK, PrefillBudget
from blade_llm.scheduling.budget.step_cost import StepCost
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.plan import StepPlan, StepResult
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.scheduler import Scheduler

SHORT = 64
"""Prompt tokens: up to here a prompt is short."""
THROUGHPUT = 0.98
"""Part of the throughput of first come, first served that is kept at least."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Seconds of a step: ``decode``, ``eager`` if it computes more than decodes and replays no graph, and ``token`` for
    each token."""

    decode: float
    eager: float
    token: float
    min_chunk: int
    graphs: tuple[int, ...] = ()
    """Numbers of tokens for which mixed steps are CUDA graphs, ascending."""

    def seconds(self, plan: StepPlan) -> float:
        tokens = plan.num_tokens
        if all(chunk.count == 1 for chunk in plan.chunks):
            return self.decode + self.token * tokens
        padded = next((size for size in self.graphs if size >= tokens), None)
        if padded is not None:
            return self.decode + self.token * padded
        return self.decode + self.eager + self.token * tokens


GPU = Machine(decode=0.0045, eager=0.003, token=2.5e-5, min_chunk=GPU_MIN_CHUNK)
"""An 8B model."""
SMALL_GPU = Machine(decode=0.001, eager=0.0033, token=5e-6, min_chunk=GPU_MIN_CHUNK)
"""A 0.5B model, whose mixed steps the host's launches bound."""
GRAPHS = (16, 32, 64, 128, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048)
"""The engine's default sizes."""
CPU = Machine(decode=0.060, eager=0.0, token=0.002, min_chunk=CPU_MIN_CHUNK)
"""A 0.5B model on two cores."""


class LinearCost(StepCost):
    """Charges whatever a mixed step takes longer to its tokens."""

    def observe_mixed(self, tokens: int, seconds: float) -> None:
        super().observe_mixed(tokens, seconds)
        if self._tokens:
            self.fixed, self.per_token = 0.0, self._added / self._tokens


@dataclass(frozen=True, kw_only=True)
class Arrival:
    at: float
    """Seconds."""
    prompt: int
    output: int
    beams: int = 0
    shared: int = 0
    """Tokens at the beginning of the prompt that all such prompts share."""


@dataclass
class Outcome:
    """Seconds and counts of one simulation."""

    first_token: dict[int, float] = field(default_factory=dict)
    """Number of the arrival → seconds to its first token; of a beam search: to its first step."""
    busy: float = 0.0
    """Seconds of all steps."""
    steps: int = 0
    decode_only: int = 0
    overtaken: int = 0
    """Pairs of requests of which the later one got its first token first."""

    def percentile(self, arrivals: list[Arrival], chosen: Callable[[Arrival], bool], percent: int) -> float:
        values = [self.first_token[number] for number, arrival in enumerate(arrivals) if chosen(arrival)]
        return statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else values[0]


@dataclass(frozen=True, kw_only=True)
class Load:
    """A row."""

    name: str
    machine: Machine
    arrivals: list[Arrival]
    blocks: int = 8000
    slots: int = 64
    linear: bool = False
    """Compare with the cost that is charged to tokens alone, in place of first come, first served."""
    most: float | None = None
    """Seconds to the first token of a short prompt, at the 99th percentile; None: those of the comparison. Given, the
    comparison has steps of any length too."""
    throughput: float = THROUGHPUT


def simulate(load: Load, policy: AdmissionPolicy, budget: PrefillBudget) -> Outcome:
    config = SchedulerConfig(max_num_seqs=load.slots, max_batch_tokens=2048, max_model_len=16_384)
    scheduler = Scheduler(config, KVCacheManager(load.blocks), budget, policy)
    outcome, now, arrived = Outcome(), 0.0, 0
    top_logprobs: dict[int, int] = {}
    while arrived < len(load.arrivals) or scheduler.has_work:
        if not scheduler.has_work:
            now = max(now, load.arrivals[arrived].at)
        while arrived < len(load.arrivals) and load.arrivals[arrived].at <= now:
            scheduler.add(_request(arrived, load.arrivals[arrived]))
            arrived += 1
        plan = scheduler.schedule()
        assert plan is not None, "neither plans nor ends"
        seconds = load.machine.seconds(plan)
        now += seconds
        outcome.busy += seconds
        outcome.steps += 1
        outcome.decode_only += all(chunk.count == 1 for chunk in plan.chunks)
        for new in plan.new_requests:
            top_logprobs[new.slot] = new.sampling.logprobs or 0
        sampled = [chunk for chunk in plan.chunks if chunk.sample]
        for chunk in sampled:
            number = int(chunk.request_id)
            if number not in outcome.first_token:
                outcome.first_token[number] = now - load.arrivals[number].at
                outcome.overtaken += sum(other not in outcome.first_token for other in range(number))
        scheduler.update(plan, _result([top_logprobs[chunk.slot] for chunk in sampled]), seconds)

    return outcome


def _request(number: int, arrival: Arrival) -> Request:
    own = random.Random(number).choices(range(1000, 50_000), k=arrival.prompt - arrival.shared)
    sampling = SamplingParams(max_tokens=arrival.output, temperature=0.0, seed=0, beam_width=arrival.beams)
    return Request(str(number), [7 * i % 997 for i in range(arrival.shared)] + own, sampling)


def _result(top: Iterable[int]) -> StepResult:
    tokens = [[5] for _ in top]
    logprobs = [
        [TokenLogprobs(-0.1, tuple(range(5, 5 + count)), tuple(-0.1 * (1 + i) for i in range(count)))]
        if count
        else None
        for count in top
    ]
    return StepResult(tokens, logprobs)


# ── the loads ───────────────────────────────────────────────────────────────────────────────────────────────────────


def streams(count: int, output: int) -> list[Arrival]:
    """Requests that decode from the beginning on."""
    return [Arrival(at=0.0, prompt=32, output=output) for _ in range(count)]


def poisson(seed: int, rate: float, seconds: float, prompts: tuple[int, int], output: int) -> list[Arrival]:
    """Arrivals at ``rate`` a second of prompts of lengths between ``prompts``."""
    generator, at, arrivals = random.Random(seed), 1.0, []
    while (at := at + generator.expovariate(rate)) < seconds:
        arrivals.append(Arrival(at=at, prompt=generator.randint(*prompts), output=output))
    return arrivals


def ordered(*groups: list[Arrival]) -> list[Arrival]:
    return sorted((arrival for group in groups for arrival in group), key=lambda arrival: arrival.at)


def loads() -> list[Load]:
    seconds = 60.0
    return [
        Load(
            name="fixed_cost",
            machine=SMALL_GPU,
            arrivals=ordered(
                streams(16, 6000),
                poisson(1, 4, 10.0, (8, SHORT), 8),
                poisson(2, 2, 10.0, (1024, 1024), 8),
            ),
            linear=True,
        ),
        Load(
            name="mixed_graphs",
            machine=replace(SMALL_GPU, graphs=GRAPHS),
            arrivals=ordered(
                streams(16, 6000),
                poisson(1, 4, 10.0, (8, SHORT), 8),
                poisson(2, 2, 10.0, (1024, 1024), 8),
            ),
        ),
        Load(
            name="wide_search",
            machine=GPU,
            arrivals=[
                *streams(1, 3000),
                Arrival(at=1.0, prompt=32, output=32, beams=64),
                *(Arrival(at=1.0 + 0.001 * i, prompt=8 + i, output=64) for i in range(20)),
            ],
        ),
        Load(
            name="no_blocks",
            machine=GPU,
            arrivals=ordered(
                streams(8, 1500),
                [Arrival(at=2.0 + i, prompt=9000, output=200) for i in range(4)],
                poisson(3, 10, seconds / 2, (8, SHORT), 32),
            ),
            blocks=1400,
        ),
        Load(
            name="long_prompts",
            machine=CPU,
            arrivals=ordered(
                streams(4, int(seconds * 8)),
                [Arrival(at=2.0 + 15 * i, prompt=3000, output=32) for i in range(int(seconds / 20))],
                poisson(4, 0.4, seconds, (8, SHORT), 16),
            ),
        ),
        Load(
            name="flood",
            machine=CPU,
            arrivals=ordered(
                [Arrival(at=0.01 * i, prompt=1000 + i, output=64) for i in range(200)],
                poisson(8, 0.5, seconds, (8, SHORT), 16),
            ),
            blocks=20_000,
            slots=256,
            most=2.0,
            # This device computes nothing while it reads its weights, so that bounded steps cost it most.
            throughput=0.92,
        ),
        Load(
            name="shared_prefix",
            machine=GPU,
            arrivals=ordered(
                [Arrival(at=1.0 + 0.001 * i, prompt=8016, shared=8000, output=600) for i in range(8)],
                poisson(5, 4, 8.0, (8, SHORT), 32),
            ),
            blocks=800,
        ),
        Load(
            name="burst",
            machine=GPU,
            arrivals=ordered(
                poisson(6, 150, 3.0, (500, 2500), 64),
                poisson(7, 20, seconds / 3, (8, SHORT), 32),
            ),
        ),
    ]


def main() -> int:
    return report("scheduling", [figure for load in loads() for figure in compare(load)])


def compare(load: Load) -> list[Figure]:
    """Play ``load`` both ways."""
    machine = load.machine
    now = simulate(load, AdmissionPolicy(), PrefillBudget(min_chunk=machine.min_chunk, graph_sizes=machine.graphs))
    if machine.graphs:
        launched = replace(load, machine=replace(machine, graphs=()))
        before = simulate(launched, AdmissionPolicy(), PrefillBudget(min_chunk=machine.min_chunk))
    elif load.linear:
        baseline = PrefillBudget(min_chunk=4)
        baseline.cost = LinearCost()
        before = simulate(load, AdmissionPolicy(), baseline)
    else:
        baseline = PrefillBudget(min_chunk=machine.min_chunk)
        if load.most is not None:
            baseline = PrefillBudget(min_chunk=machine.min_chunk, most_seconds=1e9)
        before = simulate(load, FIRST_COME_FIRST_SERVED, baseline)
    return _figures(load, before, now)


def _figures(load: Load, before: Outcome, now: Outcome) -> list[Figure]:
    arrivals, name = load.arrivals, load.name
    sizes: dict[str, Callable[[Arrival], bool]] = {
        "short": lambda arrival: arrival.at > 0 and arrival.prompt <= SHORT and not arrival.beams,
        "long": lambda arrival: arrival.at > 0 and (arrival.prompt > SHORT or arrival.beams > 0),
    }
    figures = []
    for size, chosen in sizes.items():
        for percent in (50, 99):
            old, new = (outcome.percentile(arrivals, chosen, percent) for outcome in (before, now))
            target = (old if load.most is None else load.most) if size == "short" and percent == 99 else None
            figures.append(Figure(f"{name}_{size}_ttft_p{percent}_before", old, "s"))
            goal = ("<=", target) if target is not None else ("", 0.0)
            figures.append(Figure(f"{name}_{size}_ttft_p{percent}", new, "s", *goal))
    figures.append(Figure(f"{name}_throughput_ratio", before.busy / now.busy, "", ">=", load.throughput))
    figures.append(Figure(f"{name}_overtaken", now.overtaken, "pairs"))
    figures.append(Figure(f"{name}_overtaken_before", before.overtaken, "pairs"))
    figures.append(Figure(f"{name}_steps", now.steps, "steps"))
    figures.append(Figure(f"{name}_steps_before", before.steps, "steps"))
    figures.append(Figure(f"{name}_steps_without_prefill", now.decode_only, "steps"))
    return figures


if __name__ == "__main__":
    sys.exit(main())
