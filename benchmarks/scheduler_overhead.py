"""What the scheduler costs the host in each step: the time of ``schedule()`` plus ``update()`` in steady decode.

Run it as ``python -m benchmarks.scheduler_overhead``. Medians over many steps, each request with a context of about
2,000 tokens, so that work in proportion to the context would show.
"""

from __future__ import annotations

import statistics
import sys
import time

from benchmarks.figures import QUICK, Figure, report
from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.plan import StepPlan, StepResult
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.scheduler import Scheduler

CONTEXT = 2000
TARGETS_US = {64: 300.0, 256: 1000.0}


def decode_us(num_requests: int, steps: int) -> tuple[float, float]:
    """Median microseconds of schedule() and of update() with so many running decodes."""
    limits = SchedulerConfig(max_num_seqs=num_requests, max_batch_tokens=8192, max_model_len=CONTEXT + steps + 2)
    scheduler = Scheduler(limits, KVCacheManager(num_requests * (CONTEXT + steps + 32) // 16))
    for number in range(num_requests):
        prompt = [number * 7919 % 50_000 + i for i in range(CONTEXT)]
        scheduler.add(Request(str(number), prompt, SamplingParams(max_tokens=steps + 1, temperature=0)))

    def deliver(plan: StepPlan) -> None:
        drawn = [[11] for row in plan.rows if row.sample]
        assert all(
            output.token_ids == [11] for output in scheduler.update(plan, StepResult(drawn, [None] * len(drawn)))
        )

    decoding = 0
    while decoding < num_requests:
        plan = scheduler.schedule()
        assert plan is not None
        decoding = sum(row.sample for row in plan.rows)
        deliver(plan)
    schedule_times, update_times = [], []
    for _ in range(steps - num_requests // 4 - 8):
        begin = time.perf_counter()
        plan = scheduler.schedule()
        scheduled = time.perf_counter()
        assert plan is not None
        assert len(plan.rows) == num_requests
        drawn = StepResult([[11] for _ in plan.rows], [None] * num_requests)
        launched = time.perf_counter()
        outputs = scheduler.update(plan, drawn)
        end = time.perf_counter()
        assert len(outputs) == num_requests
        schedule_times.append(scheduled - begin)
        update_times.append(end - launched)
    return statistics.median(schedule_times) * 1e6, statistics.median(update_times) * 1e6


def main() -> int:
    steps = 200 if QUICK else 600
    figures = []
    for num_requests, target in TARGETS_US.items():
        schedule, update = decode_us(num_requests, steps)
        figures.append(Figure(f"scheduler_schedule_us_{num_requests}", schedule, "us", "<=", target))
        figures.append(Figure(f"scheduler_update_us_{num_requests}", update, "us"))
    return report("scheduler_overhead", figures)


if __name__ == "__main__":
    sys.exit(main())
