"""The rows of the table, by the names that ``ROWS`` chooses from, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from benchmarks.figures import Figure
from benchmarks.router.rounds import Context
from benchmarks.router.rows import (
    admission,
    affinity,
    bodies,
    cancel,
    failures,
    flood,
    kv_aware,
    latency,
    memory,
    prefix,
    real_engines,
    reload,
    streaming,
    throughput,
)

ROWS: Final[dict[str, Callable[[Context], Awaitable[list[Figure]]]]] = {
    "latency": latency.run,
    "throughput": throughput.run,
    "long_prompts": throughput.run_long,
    "streaming": streaming.run,
    "fast_streams": streaming.run_fast,
    "many_streams": streaming.run_many,
    "prefix": prefix.run,
    "queues": prefix.run_queues,
    "affinity": affinity.run,
    "kv_aware": kv_aware.run,
    "real_engines": real_engines.run,
    "failures": failures.run,
    "killed": failures.run_killed,
    "cancel": cancel.run,
    "memory": memory.run,
    "fairness": admission.run_fairness,
    "workers": admission.run_workers,
    "reload": reload.run,
    "bodies": bodies.run,
    "flood": flood.run,
}
