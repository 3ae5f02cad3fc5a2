"""Ranks of an engine as threads of one process: real runners, each with its part of the weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TypeVar

import torch
from engine_support.family_proof import EveryPosition, all_selected
from engine_support.tiny_models import engine_config

from blade_llm.config import EngineConfig
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import rank_model
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.shares import share_of
from blade_llm.runner.stage_runner import StageRunner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.scheduling.plan import PendingForward, PendingStep, StepPlan, StepResult

WAIT = 200.0 if torch.cuda.is_available() else 60.0
"""Seconds after which a rank that does not come to a collective fails the test; on a GPU it may compile meanwhile."""
_Result = TypeVar("_Result")


class Turns:
    """Lets one rank work at a time, and another one while it waits for others: neither Triton's interpreter nor its
    compiler is made for threads."""

    def __init__(self, *, taken: bool) -> None:
        """``taken``: False for ranks that all work at once."""
        self._lock = threading.Lock() if taken else None
        self._working: int | None = None

    @contextmanager
    def working(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        with self._lock:
            self._working = threading.get_ident()
            try:
                yield
            finally:
                self._working = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within :meth:`working`; elsewhere it is nobody's turn."""
        if self._lock is None or self._working != threading.get_ident():
            yield
            return
        self._working = None
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._working = threading.get_ident()


class _Meeting:
    """Where the threads put what they bring to a collective."""

    def __init__(self, size: int, turns: Turns | None = None) -> None:
        self.barrier = threading.Barrier(size, timeout=WAIT)
        self.brought: list[Any] = [None] * size
        self._turns = turns or Turns(taken=False)

    def wait(self) -> None:
        """For all threads."""
        with self._turns.waiting():
            self.barrier.wait()


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

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        own = share_of(len(x), self.rank, self.size)
        return torch.cat([each[own.start : own.stop] for each in self._exchange(x.clone())], dim=-1)

    def least(self, value: int) -> int:
        return min(self._exchange(value))

    def abort(self, lost_rank: int) -> None:
        self._meeting.barrier.abort()

    def close(self) -> None:
        self._meeting.barrier.abort()

    def _exchange(self, mine: Any) -> list[Any]:
        self._meeting.brought[self.rank] = mine
        self._meeting.wait()
        brought = list(self._meeting.brought)
        self._meeting.wait()
        return brought


def thread_groups(size: int, turns: Turns | None = None) -> list[ThreadGroup]:
    """One group of so many ranks, as each of them sees it."""
    meeting = _Meeting(size, turns)
    return [ThreadGroup(meeting, rank) for rank in range(size)]


class ThreadLink:
    """Implements :class:`blade_llm.parallel.link.StageLink`."""

    def __init__(self, queues: Sequence[Queue[bytes | None]], stage: int, turns: Turns | None = None) -> None:
        self._queues = queues
        self._turns = turns or Turns(taken=False)
        self.stage, self.stages = stage, len(queues)

    def send(self, payload: memoryview) -> None:
        self._queues[(self.stage + 1) % self.stages].put(bytes(payload))

    def receive(self, *, wait: bool = True) -> memoryview | None:
        try:
            with self._turns.waiting():
                payload = self._queues[self.stage].get(wait, WAIT)
        except Empty:
            assert not wait, f"nothing comes to stage {self.stage}"
            return None
        if payload is None:
            self._queues[self.stage].put(None)
            raise threading.BrokenBarrierError
        return memoryview(payload)

    def abort(self, lost_rank: int) -> None:
        self.close()

    def close(self) -> None:
        for queue in self._queues:
            queue.put(None)


def thread_links(stages: int, turns: Turns | None = None) -> list[ThreadLink]:
    """A ring of so many stages, as each of them sees it."""
    queues: list[Queue[bytes | None]] = [Queue() for _ in range(stages)]
    return [ThreadLink(queues, stage, turns) for stage in range(stages)]


class RankedForward:
    """``forwards``: by rank; ``size``: ranks of a stage."""

    def __init__(self, forwards: Sequence[Any], size: int) -> None:
        self.forwards = forwards
        parts = [each.logits for each in forwards[-size:]]
        assert len({part is None for part in parts}) == 1
        self.logits: torch.Tensor | None = None if parts[0] is None else torch.cat(parts, dim=1)
        assert all(each.logits is None for each in forwards[:-size])


class RankedStep:
    """The results of ranks that must have the same."""

    def __init__(self, steps: Sequence[PendingStep], *, in_stages: bool) -> None:
        self._steps = steps
        self._in_stages = in_stages

    def done(self) -> bool:
        """Of stages never: their scheduler has as many steps in flight as it may have."""
        return not self._in_stages

    def result(self) -> StepResult:
        first, *others = [step.result() for step in self._steps]
        if self._in_stages:  # of the first stage: others than rank 0 get the tokens alone
            assert all(other.tokens == first.tokens for other in others), "ranks received different tokens"
        else:
            assert all(other == first for other in others), "ranks sampled different tokens"
        return first


class Twice:
    """A model of a stage before :class:`~engine_support.family_proof.EveryPosition`, which computes a step twice unless
    all its tokens are selected."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, token_ids: torch.Tensor, step: Any, selected: torch.Tensor | None) -> torch.Tensor:
        if not all_selected(token_ids, selected):
            self.model(token_ids, step, selected)
        states: torch.Tensor = self.model(token_ids, step, selected)
        return states

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class ThreadRanks:
    """Implements :class:`blade_llm.scheduling.plan.Runner`, and what tests read of a
    :class:`~blade_llm.runner.torch_runner.TorchRunner`."""

    def __init__(self, config: EngineConfig, *, in_turns: bool = False) -> None:
        """``in_turns``: see :class:`Turns`."""
        layout = RankLayout.of(config)
        self._turns = turns = Turns(taken=in_turns)
        groups = [thread_groups(layout.tensor, turns) for _ in range(layout.pipeline)]
        links = [thread_links(layout.pipeline, turns) for _ in range(layout.tensor)]
        self._pool = ThreadPoolExecutor(layout.size)
        self.config = config
        self.layout = layout
        self.model_config = read_model_config(config.model_dir, config.model_impl, config.task)

        def build(rank: int) -> TorchRunner:
            stage, in_stage = layout.stage_of(rank), layout.tensor_rank_of(rank)
            group: RankGroup | None = groups[stage][in_stage] if layout.tensor > 1 else None
            own = rank_model(self.model_config, layout, rank)
            try:
                if layout.pipeline == 1:
                    runner = TorchRunner(config, own, group=group)
                else:
                    runner = StageRunner(config, own, group, links[in_stage][stage])
                runner.warm_up()
            except BaseException:
                for each in (*groups[stage], *links[in_stage]):
                    each.close()
                raise
            return runner

        self.groups = groups[0]
        self.runners = self._all([lambda rank=rank: build(rank) for rank in range(layout.size)])
        first = self.runners[0]
        self.num_blocks, self.max_model_len, self.device = first.num_blocks, first.max_model_len, first.device
        self.draft, self.adapters, self.tables = first.draft, first.adapters, first.tables
        self.memory_plan = first.memory_plan

    @property
    def sampling(self) -> list[TorchRunner]:
        """The runners of the last stage."""
        return self.runners[-self.layout.tensor :]

    @property
    def model(self) -> Any:
        """That of the last stage's first rank; what wraps it must wrap every rank's, as all of them meet in its
        collectives."""
        return self.sampling[0].model

    @model.setter
    def model(self, wrapped: EveryPosition) -> None:
        first, *others = self.sampling
        first.model = wrapped  # type: ignore[assignment]
        for runner in others:
            runner.model = EveryPosition(runner.model)  # type: ignore[assignment]
        for runner in self.runners[: -self.layout.tensor]:
            runner.model = Twice(runner.model)  # type: ignore[assignment]

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> RankedForward:
        forwards = self._all([lambda runner=each: runner.launch_forward(plan) for each in self.runners])
        return RankedForward(forwards, self.layout.tensor)

    def release_cache(self) -> None:
        for runner in self.runners:
            runner.release_cache()

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> RankedStep:
        assert isinstance(forward, RankedForward)
        pairs = zip(self.runners, forward.forwards, strict=True)
        steps = self._all([lambda runner=runner, own=own: runner.launch_sampling(own, masks) for runner, own in pairs])
        return RankedStep(steps[: self.layout.tensor], in_stages=self.layout.pipeline > 1)

    def draft_tokens(self, forward: PendingForward) -> dict[int, list[int]]:
        assert isinstance(forward, RankedForward)
        first, *others = [runner.draft_tokens(own) for runner, own in zip(self.runners, forward.forwards, strict=True)]
        assert all(other == first for other in others), "ranks drafted different tokens"
        return first

    def _all(self, calls: Sequence[Callable[[], _Result]]) -> list[_Result]:
        """What the calls return, each of which is one rank's; the first error of one that did not wait for others."""

        def in_turn(call: Callable[[], _Result]) -> _Result:
            with self._turns.working():
                return call()

        futures: list[Future[_Result]] = [self._pool.submit(in_turn, call) for call in calls]
        errors = [error for each in futures if (error := each.exception()) is not None]
        alone = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        for error in alone or errors:
            raise error
        return [each.result() for each in futures]


def thread_ranks(folder: Path, size: int, stages: int = 1, *, in_turns: bool = False, **overrides: Any) -> ThreadRanks:
    """``size`` ranks in each of ``stages`` stages, which serve the model of ``folder``."""
    config = engine_config(folder, tensor_parallel_size=size, pipeline_parallel_size=stages, **overrides)
    return ThreadRanks(config, in_turns=in_turns)
