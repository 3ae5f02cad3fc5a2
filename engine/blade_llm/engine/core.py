"""The loop's one step: schedule, launch, deliver.

One code path for two kinds of device. A GPU works while the host goes on: the next forward pass is launched before the
tokens of the step before have arrived, and the host's work hides behind it. On CPU torch is synchronous: a launched
step is done when the call returns, and is delivered at once, so nothing is scheduled blindly and no token waits.

A stop that is found one step late costs one discarded draw, never a wrong token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blade_llm.cache.manager import KVCacheManager
from blade_llm.engine.config import BLOCK_SIZE, EngineConfig
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.plan import PendingStep, Runner, StepPlan
from blade_llm.scheduling.request import Request, RequestRefusedError
from blade_llm.scheduling.scheduler import Scheduler, SchedulerStats


@dataclass(slots=True)
class _InFlight:
    plan: StepPlan
    launched_at: float
    pending: PendingStep


class EngineCore:
    """Scheduler and runner, stepped by their owner. Not thread-safe: one thread calls everything.

    Exceptions of the runner propagate out of :meth:`step`; the core is not usable afterwards.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, clock: Callable[[], float] = time.monotonic) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._in_flight: _InFlight | None = None
        self._refusals: list[RequestOutput] = []
        self._delivered_at = clock()

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        runner: Runner,
        *,
        num_blocks: int,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
    ) -> EngineCore:
        """A core with a scheduler and an empty KV cache of ``num_blocks`` blocks for ``runner``."""
        limits = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_batch_tokens=config.max_batch_tokens,
            max_model_len=max_model_len,
            eos_token_ids=tuple(eos_token_ids),
        )
        cache = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prompt_cache=config.enable_prompt_cache)
        return cls(Scheduler(limits, cache), runner)

    def add(self, message: GenerateRequest) -> None:
        """Queue a request. One that can never run is answered by the next step's output, with ``error`` set."""
        request = Request(
            request_id=message.request_id,
            prompt_token_ids=message.prompt_token_ids,
            sampling=message.sampling,
            sample_index=message.sample_index,
            cache_salt=message.cache_salt,
            priority=message.priority,
        )
        try:
            self.scheduler.add(request)
        except RequestRefusedError as error:
            self._refusals.append(RequestOutput(request_id=message.request_id, finish_reason="abort", error=str(error)))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests: rows and blocks are free at once, no further output. Unknown ids are ignored."""
        gone = set(request_ids)
        self.scheduler.abort(gone)
        self._refusals = [output for output in self._refusals if output.request_id not in gone]

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has anything to do; the owner sleeps otherwise."""
        return self.scheduler.has_work or self._in_flight is not None or bool(self._refusals)

    def state(self) -> SchedulerStats:
        """The counts of :class:`blade_protocol.state.EngineState`, by the same field names."""
        return self.scheduler.stats()

    def step(self) -> list[RequestOutput]:
        """Launch one step and deliver what is ready: on CPU its own tokens, on a GPU those of the step before."""
        outputs, self._refusals = self._refusals, []
        if self._is_ready():
            outputs += self._deliver()
        plan = self.scheduler.schedule()
        if plan is None:
            if self._in_flight is not None:
                outputs += self._deliver()
            elif self.scheduler.has_work:
                raise RuntimeError("the scheduler has requests but neither plans nor awaits a step")
            return outputs
        launched_at = self._clock()
        forward = self._runner.launch_forward(plan)
        if self._in_flight is not None:
            outputs += self._deliver()
        self._in_flight = _InFlight(plan, launched_at, self._runner.launch_sampling(forward))
        if self._is_ready():
            outputs += self._deliver()
        return outputs

    def _is_ready(self) -> bool:
        return self._in_flight is not None and self._in_flight.pending.done()

    def _deliver(self) -> list[RequestOutput]:
        """Wait for the step in flight and hand its tokens to the scheduler."""
        step, self._in_flight = self._in_flight, None
        assert step is not None
        result = step.pending.result()
        now = self._clock()
        # The device began when it was told to, or when it was through with the step before.
        seconds = now - max(step.launched_at, self._delivered_at)
        self._delivered_at = now
        return self.scheduler.update(step.plan, result, seconds)
