"""The options of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blade_llm.benchmark.client.target import Endpoint
from blade_llm.benchmark.errors import BenchmarkError
from blade_llm.benchmark.slo import Objective
from blade_llm.benchmark.workload.lengths import LONGEST, SHORTEST

REQUESTS = 100
OUTPUT_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One field per flag of ``blade_llm_benchmark``; None is "not given". Raises :class:`BenchmarkError`."""

    base_url: str
    endpoint: Endpoint = "chat"
    model: str | None = None
    api_key: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 0.0
    ignore_eos: bool = True
    timeout: float = 600.0

    concurrency: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    num_requests: int | None = None
    duration: float | None = None
    warmup: int | None = None
    seed: int = 0

    input_len: int | None = None
    output_len: int | None = None
    dataset: Path | None = None
    prompts: Path | None = None
    max_len: int = LONGEST
    tokenizer: Path | None = None

    slo: Sequence[Objective] = ()
    find_rate: bool = False
    attainment: float = 0.9
    probe_requests: int = 100
    probe_seconds: float = 20.0
    rate_precision: float = 0.05

    def __post_init__(self) -> None:
        if self.concurrency is not None and (self.request_rate is not None or self.find_rate):
            raise BenchmarkError(
                "--concurrency is a closed loop, --request_rate and --find_rate are open loops; give one of them"
            )
        if sum(given is not None for given in (self.dataset, self.prompts, self.input_len)) > 1:
            raise BenchmarkError("--dataset, --prompts and --input_len exclude each other; give one of them")
        if self.find_rate and not self.slo:
            raise BenchmarkError("--find_rate needs --slo, like --slo ttft=200ms tpot=50ms")
        if self.max_len < 2 * SHORTEST:
            raise BenchmarkError(f"--max_len {self.max_len} leaves no room for a prompt and an answer")

    @property
    def users(self) -> int:
        """Concurrent users of a closed loop."""
        return self.concurrency or 1

    @property
    def total_requests(self) -> float:
        """Measured ones."""
        if self.num_requests is None:
            return REQUESTS if self.duration is None else float("inf")
        return self.num_requests

    @property
    def warm_up_requests(self) -> int:
        """Sent before, and left out: as many as are in flight together, so that each has once been through."""
        return min(self.users, 64) if self.warmup is None else self.warmup

    @property
    def load_text(self) -> str:
        """For the head of the report."""
        if self.find_rate:
            kept = ", ".join(map(str, self.slo))
            return f"highest rate at which {self.attainment:.0%} of requests keep {kept}"
        amount = f"{self.total_requests:g} requests" if self.duration is None else f"{self.duration:g} s"
        if self.num_requests is not None and self.duration is not None:
            amount += f" or {self.num_requests} requests"
        warm = f", after {self.warm_up_requests} to warm up" if self.warm_up_requests else ""
        if self.request_rate is None:
            return f"closed loop, {self.users} at a time, {amount}{warm}"
        shape = "Poisson arrivals" if self.burstiness == 1 else f"arrivals of burstiness {self.burstiness:g}"
        return f"open loop, {shape}, {self.request_rate:g} requests/s, {amount}{warm}"

    @property
    def prompts_text(self) -> str:
        """For the head of the report."""
        out = f", {self.output_len} tokens out" if self.output_len else ""
        if self.dataset is not None:
            return f"ShareGPT from {self.dataset}{out}"
        if self.prompts is not None:
            return f"{self.prompts}, {self.output_len or OUTPUT_TOKENS} tokens out"
        if self.input_len is not None:
            return f"random words, {self.input_len} tokens in, {self.output_len or OUTPUT_TOKENS} tokens out"
        return f"random words with ShareGPT-like lengths{out}"
