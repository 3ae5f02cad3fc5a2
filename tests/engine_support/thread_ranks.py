"""Ranks of a tensor-parallel group as threads of one process: real runners, each with its part of the weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from engine_support.family_proof import EveryPosition
from engine_support.tiny_models import engine_config

from blade_llm.config import EngineConfig
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import shard_model
from blade_llm.parallel.group import RankGroup
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.scheduling.plan import PendingForward, PendingStep, StepPlan, StepResult

WAIT = 60.0
"""Seconds after which a rank that does not come to a collective fails the test."""
_Result = TypeVar("_Result")


class _Meeting:
    """Where the threads put what they bring to a collective."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=WAIT)
        self.brought: list[Any] = [None] * size


class ThreadGroup:
    """Implements :class:`blade_llm.parallel.group.RankGroup`."""

    native = None

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting = meeting
        self.rank, self.size = rank, len(meeting.brought)
        self.reduced = 0
        """All-reduces so far."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        self.reduced += 1
        total = sum((part.float() for part in self._exchange(x.clone())), torch.zeros(()))
        return x.copy_(total)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        return torch.cat(self._exchange(x.clone()), dim=-1)

    def least(self, value: int) -> int:
        return min(self._exchange(value))

    def abort(self, lost_rank: int) -> None:
        self._meeting.barrier.abort()

    def close(self) -> None:
        self._meeting.barrier.abort()

    def _exchange(self, mine: Any) -> list[Any]:
        self._meeting.brought[self.rank] = mine
        self._meeting.barrier.wait()
        brought = list(self._meeting.brought)
        self._meeting.barrier.wait()
        return brought


def thread_groups(size: int) -> list[ThreadGroup]:
    """One group of so many ranks, as each of them sees it."""
    meeting = _Meeting(size)
    return [ThreadGroup(meeting, rank) for rank in range(size)]


class RankedForward:
    def __init__(self, forwards: Sequence[Any]) -> None:
        self.forwards = forwards
        self.logits: torch.Tensor | None = forwards[0].logits
        for other in forwards[1:]:
            assert (other.logits is None) == (self.logits is None)
            assert self.logits is None or torch.equal(other.logits, self.logits), "ranks have different logits"


class RankedStep:
    """The results of all ranks, which must be the same."""

    def __init__(self, steps: Sequence[PendingStep]) -> None:
        self._steps = steps

    def done(self) -> bool:
        return True

    def result(self) -> StepResult:
        first, *others = [step.result() for step in self._steps]
        assert all(other == first for other in others), "ranks sampled different tokens"
        return first


class ThreadRanks:
    """Implements :class:`blade_llm.scheduling.plan.Runner`, and what tests read of a
    :class:`~blade_llm.runner.torch_runner.TorchRunner`."""

    def __init__(self, config: EngineConfig) -> None:
        size = config.tensor_parallel_size
        groups = thread_groups(size)
        self._pool = ThreadPoolExecutor(size)
        self.config = config
        self.model_config = read_model_config(config.model_dir, config.model_impl, config.task)

        def build(rank: int) -> TorchRunner:
            group: RankGroup = groups[rank]
            try:
                runner = TorchRunner(config, shard_model(self.model_config, rank, size), group=group)
                runner.warm_up()
            except BaseException:
                group.close()
                raise
            return runner

        self.groups = groups
        self.runners = self._all([lambda rank=rank: build(rank) for rank in range(size)])
        first = self.runners[0]
        self.num_blocks, self.max_model_len, self.device = first.num_blocks, first.max_model_len, first.device
        self.draft, self.adapters = first.draft, None

    @property
    def model(self) -> Any:
        """Rank 0's; what wraps it must wrap every rank's, as all of them meet in its collectives."""
        return self.runners[0].model

    @model.setter
    def model(self, wrapped: EveryPosition) -> None:
        self.runners[0].model = wrapped  # type: ignore[assignment]
        for runner in self.runners[1:]:
            runner.model = EveryPosition(runner.model)  # type: ignore[assignment]

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> RankedForward:
        return RankedForward(self._all([lambda runner=each: runner.launch_forward(plan) for each in self.runners]))

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> RankedStep:
        assert isinstance(forward, RankedForward)
        pairs = zip(self.runners, forward.forwards, strict=True)
        return RankedStep(
            self._all([lambda runner=runner, own=own: runner.launch_sampling(own, masks) for runner, own in pairs])
        )

    def draft_tokens(self, forward: PendingForward) -> dict[int, list[int]]:
        assert isinstance(forward, RankedForward)
        return self.runners[0].draft_tokens(forward.forwards[0])

    def _all(self, calls: Sequence[Callable[[], _Result]]) -> list[_Result]:
        """What the calls return, each of which is one rank's; the first error of one that did not wait for others."""
        futures: list[Future[_Result]] = [self._pool.submit(call) for call in calls]
        errors = [error for each in futures if (error := each.exception()) is not None]
        alone = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        for error in alone or errors:
            raise error
        return [each.result() for each in futures]


def thread_ranks(folder: Path, size: int, **overrides: Any) -> ThreadRanks:
    """Ranks that serve the model of ``folder``."""
    return ThreadRanks(engine_config(folder, tensor_parallel_size=size, **overrides))
