"""Requests that arrive at random times, served by a system in this process; what their users saw."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.gpu.generation import add, build, prompt, transformers_model
from benchmarks.gpu.machine import DRY, median, percentile
from benchmarks.gpu.shapes import Shape


@dataclass
class Served:
    """One request; times are seconds since the load began."""

    arrival: float
    token_ids: list[int]
    max_tokens: int
    output: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each token came."""

    @property
    def ttft(self) -> float:
        return self.times[0] - self.arrival

    @property
    def tbt(self) -> float:
        """Mean time between its tokens."""
        return (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)


@dataclass(frozen=True)
class Experience:
    """What all users of a load saw."""

    ttft_median: float
    ttft_p90: float
    tbt_median: float
    tbt_p90: float
    tokens_per_second: float

    @classmethod
    def of(cls, served: Sequence[Served]) -> Experience:
        ttft, tbt = [one.ttft for one in served], [one.tbt for one in served]
        span = max(one.times[-1] for one in served) - min(one.arrival for one in served)
        tokens = sum(len(one.times) for one in served)
        return cls(median(ttft), percentile(ttft, 0.9), median(tbt), percentile(tbt, 0.9), tokens / span)


class System(Protocol):
    """Serves a load to its end."""

    def serve(self, load: list[Served]) -> None:
        """Fill in outputs and times."""


def poisson(shape: Shape, rate: float, seconds: float, seed: int = 0) -> list[Served]:
    """Requests at ``rate`` a second, prompts and outputs of random lengths around 512 and 128 tokens."""
    rng = random.Random(seed)
    scale = 16 if DRY else 1
    load: list[Served] = []
    at = 0.0
    while at < seconds or not load:
        length = min(2048, max(32, int(rng.lognormvariate(6.0, 0.7)))) // scale
        length_out = min(256, max(16, int(rng.lognormvariate(4.7, 0.5)))) // scale
        load.append(Served(at, prompt(shape, max(1, length), rng), max(2, length_out)))
        at += rng.expovariate(rate)
    return load


class Engine:
    """Ours, scheduler and runner in this thread."""

    def __init__(self, shape: Shape) -> None:
        self.core = build(
            shape, max_num_seqs=8 if DRY else 256, max_batch_tokens=2048, kv_tokens=2048 if DRY else 400_000
        )

    def serve(self, load: list[Served]) -> None:
        waiting = list(reversed(load))
        running: dict[str, Served] = {}
        start = time.perf_counter()
        while waiting or running:
            now = time.perf_counter() - start
            while waiting and waiting[-1].arrival <= now:
                one = waiting.pop()
                running[add(self.core, one.token_ids, one.max_tokens)] = one
            if not self.core.has_work:
                time.sleep(max(0.0, waiting[-1].arrival - (time.perf_counter() - start)))
                continue
            outputs = self.core.step()
            now = time.perf_counter() - start
            for output in outputs:
                one = running[output.request_id]
                one.output += output.token_ids
                one.times += [now] * len(output.token_ids)
                if output.finish_reason is not None:
                    del running[output.request_id]


class Transformers:
    """transformers' continuous batching with its own choices of CUDA graphs and attention, in its own thread."""

    def __init__(self, shape: Shape) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        self._model = transformers_model(shape)
        settings: dict[str, Any] = {"allow_block_sharing": False}
        if DRY:
            settings |= {"num_blocks": 16, "max_batch_tokens": 256}
        self._manager = self._model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(**settings),
        )
        if not DRY:
            self._manager.warmup()  # captures its CUDA graphs
        self._manager.start()

    def serve(self, load: list[Served]) -> None:
        start = time.perf_counter()
        by_id = {}
        for one in load:
            time.sleep(max(0.0, one.arrival - (time.perf_counter() - start)))
            by_id[self._manager.add_request(one.token_ids, max_new_tokens=one.max_tokens, record_timestamps=True)] = one
        while by_id:
            result = self._manager.get_result(timeout=1.0)
            if result is None:
                assert self._manager.is_running(), "transformers' continuous batching has stopped"
                continue
            if result.is_finished():
                assert result.error is None, result.error
                one = by_id.pop(result.request_id)
                one.output = list(result.generated_tokens)
                one.times = [stamp - start for stamp in result.timestamps]

    def close(self) -> None:
        """End its thread."""
        self._manager.stop(block=True, timeout=20)
