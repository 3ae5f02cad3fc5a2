"""What further ranks cost the host: ``python -m benchmarks.engine.rank_host_time``.

The engine process of :mod:`benchmarks.engine.host_step` serves 64 decodes, alone and with seven more ranks, real
processes that receive every step and compute nothing. Both take turns, and between two steps the ranks have time to run
the last one, as they have while a device computes. The ratio is one of CPU time of rank 0's thread, medians over many
steps: wall time, printed beside it, is the same where each process has a core, and counts the other ranks' work where
eight share fewer.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import cast

import torch

from benchmarks.engine.host_step import Serving, Stopwatch
from benchmarks.figures import QUICK, Figure, report
from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore
from blade_llm.engine.ranks.messages import RankStart, plan_bytes_per_slot
from blade_llm.engine.ranks.processes import RankProcesses
from blade_llm.engine.ranks.runner import LoadedRunner, RankedRunner
from blade_llm.engine.start import freeze_gc_heap
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.scheduling.plan import PendingForward, Runner, StepPlan

BATCH = 64
RANKS = 8
RATIO = 1.2
"""A step with all ranks takes at most so many times what it takes alone."""
PAUSE_SECONDS = 0.003
"""Between steps."""


class NoWork:
    """A further rank's runner, which takes steps and does nothing."""

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> PendingForward:
        return plan

    def draft_tokens(self, forward: PendingForward) -> dict[int, list[int]]:
        return {}

    def release_cache(self) -> None:
        """It has none."""

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> None:
        return None


def build_rank(start: RankStart) -> Runner:
    """``benchmarks.engine.rank_host_time:build_rank``"""
    return cast(Runner, NoWork())


class KeepingRunner(RankedRunner):
    """Keeps the last plan."""

    plan: StepPlan

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> PendingForward:
        self.plan = plan
        return super().launch_forward(plan, draft_masks)


class RankedServing(Serving):
    """An engine process with further ranks."""

    def __init__(self, ranks: RankProcesses, batch: int, steps: int) -> None:
        self._ranks = ranks
        super().__init__(batch, steps, Stopwatch())

    @property
    def bytes_per_slot(self) -> float:
        """Of the last plan."""
        return plan_bytes_per_slot(self._runner.plan)

    def _build_core(self, batch: int, max_model_len: int, gamma: int) -> EngineCore:
        core = super()._build_core(batch, max_model_len, gamma)
        self._runner = KeepingRunner(cast(LoadedRunner, core._runner), self._ranks)
        core._runner = self._runner
        core.ranks = self._ranks
        return core


def main() -> int:
    torch.set_num_threads(1)
    steps = 200 if QUICK else 1000
    ranks = RankProcesses(RANKS, build="benchmarks.engine.rank_host_time:build_rank")
    ranks.start(EngineConfig(model="", served_names=("none",)), group="")
    ranks.wait_ready()
    ranked = RankedServing(ranks, BATCH, 2 * steps)
    servings = {1: Serving(BATCH, 2 * steps, Stopwatch()), RANKS: ranked}
    freeze_gc_heap()  # as the process does after its start
    wall: dict[int, list[float]] = {1: [], RANKS: []}
    cpu: dict[int, list[float]] = {1: [], RANKS: []}
    sizes = []
    for _ in range(steps):
        for count, serving in servings.items():
            time.sleep(PAUSE_SECONDS)
            began = time.thread_time_ns()
            serving.turn()
            cpu[count].append((time.thread_time_ns() - began) / 1e6)
            serving.drain()
            time.sleep(PAUSE_SECONDS)
            wall[count].append(serving.timed_turn()["total"])
        sizes.append(ranked.bytes_per_slot)
    for serving in servings.values():
        assert serving.core.scheduler.stats().running == BATCH
        serving.close()
    ranks.raise_if_lost()
    ranks.close()
    alone, together = (statistics.median(cpu[count]) for count in (1, RANKS))
    return report(
        "rank_host_time",
        [
            Figure(f"rank_host_step_{BATCH}_tp1", alone, "ms"),
            Figure(f"rank_host_step_{BATCH}_tp{RANKS}", together, "ms"),
            Figure("rank_host_step_ratio", together / alone, "times", "<=", RATIO),
            *(Figure(f"rank_host_step_{BATCH}_tp{count}_wall", statistics.median(wall[count]), "ms") for count in wall),
            Figure("rank_plan_bytes_per_slot", statistics.mean(sizes), "bytes"),
            Figure("rank_plan_bytes_per_slot_most", max(sizes), "bytes"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
