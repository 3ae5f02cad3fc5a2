"""What a step costs the host at batch 256: everything the engine process does but the device's own work.

Run it as ``python -m benchmarks.engine.host_step``. A real engine process serves 256 decodes of about 2,000 tokens over
ZeroMQ; in place of the model there is a device that needs no time, behind the real preparation of inputs. Medians over
many steps. ``total`` is one turn of the process's loop: poll, schedule, build and send the inputs, take in the tokens
of the step before, encode and send 256 outputs. The other figures say what is in it. The same at batch 64 with four
draft tokens of a draft model each, of which none to all are accepted.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec
import torch
import zmq

from benchmarks.figures import QUICK, Figure, report
from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest
from blade_llm.engine.process import EngineProcess
from blade_llm.engine.start import freeze_gc_heap
from blade_llm.runner.draft_inputs import send_draft_inputs
from blade_llm.runner.inputs import send_inputs
from blade_llm.runner.tables import SlotTables
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.budget.prefill import PrefillBudget
from blade_llm.scheduling.plan import PendingForward, StepPlan, StepResult

BATCH = 256
CONTEXT = 2000
PREFILL_STEPS = 200
"""While the last prompts are computed the first decode already."""
TOTAL_MS = 1.5
"""``total`` stays below."""
CORE_MS = 0.9
"""``total`` without the inputs stays below."""
DRAFTING_BATCH = 64
GAMMA = 4
CATCH_UP_STEPS = 400
"""In which the draft model computes the prompts."""

T = TypeVar("T")


class Stopwatch:
    """Adds up the time spent in some functions, step by step."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., T]) -> Callable[..., T]:
        """``function``, whose time counts under ``name``."""

        def wrapper(*arguments: Any) -> T:
            begin = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.ms[name] = self.ms.get(name, 0.0) + (time.perf_counter() - begin) * 1e3

        return wrapper


class SamplerOutput:
    """Tokens that are there at once: of each decode those of its accepted draft tokens, by turns none to all, and one
    more."""

    def __init__(self, plan: StepPlan) -> None:
        self._counts: list[int] | None = None
        if plan.draft_chunks:
            drafted = [chunk.num_draft_tokens for chunk in plan.chunks if chunk.sample]
            self._counts = [1 + index % (count + 1) for index, count in enumerate(drafted)]
        count = sum(chunk.sample for chunk in plan.chunks) if self._counts is None else sum(self._counts)
        self._tokens = torch.full((count,), 11)

    def done(self) -> bool:
        return False  # as on a GPU: the next forward pass is launched first

    def result(self) -> StepResult:
        if self._counts is None:
            tokens = [[token] for token in self._tokens.tolist()]
        else:
            flat = iter(self._tokens.tolist())
            tokens = [list(islice(flat, count)) for count in self._counts]
        return StepResult(tokens, [None] * len(tokens))


class NoDevice:
    """A runner that prepares inputs and computes nothing."""

    def __init__(self, tables: SlotTables, watch: Stopwatch) -> None:
        self._tables = tables
        self._send_inputs = watch.timed("inputs", send_inputs)
        self._send_draft_inputs = watch.timed("inputs", send_draft_inputs)

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> StepPlan:
        self._send_inputs(plan, self._tables)
        if plan.draft_chunks:
            self._send_draft_inputs(plan, self._tables.token_ids.device)
        return plan

    def release_cache(self) -> None:
        """It has none."""

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> SamplerOutput:
        return SamplerOutput(cast(StepPlan, forward))


class Serving:
    """An engine process in steady decode of ``batch`` requests, to be taken through its loop turn by turn.

    Args:
        steps: tokens of each request it must be good for.
        context: tokens of each prompt.
        gamma: draft tokens of each decode, of a draft model.
    """

    def __init__(self, batch: int, steps: int, watch: Stopwatch, context: int = CONTEXT, gamma: int = 0) -> None:
        self.watch = watch
        self.core = self._build_core(batch, context + steps + PREFILL_STEPS, gamma)
        self._context: zmq.Context[Any] = zmq.Context()
        engine, self._front = self._context.socket(zmq.ROUTER), self._context.socket(zmq.DEALER)
        for socket in (engine, self._front):
            socket.set_hwm(0)
            socket.linger = 0
        engine.bind("inproc://host_step")
        self._front.connect("inproc://host_step")
        self._pipe = os.pipe()
        self._process = EngineProcess(self.core, engine, self._pipe[0])
        for number in range(batch):
            self._send(number, context, steps + PREFILL_STEPS - BLOCK_SIZE)
        while self.core.scheduler.stats().generation_tokens_total < 2 * batch or self.core.scheduler.stats().waiting:
            self.turn()
            self.drain()

    def turn(self) -> None:
        """One turn of the process's loop."""
        self._process.turn()

    def drain(self) -> None:
        """Read and forget what the process has sent."""
        while self._front.poll(0):
            self._front.recv()

    def timed_turn(self, turns: int = 1) -> dict[str, float]:
        """Milliseconds of one turn or several, whole and by part."""
        self.watch.ms = {}
        for _ in range(turns):
            self.watch.timed("total", self.turn)()
            self.drain()
        return self.watch.ms

    def close(self) -> None:
        self._context.destroy()
        for descriptor in self._pipe:
            os.close(descriptor)

    def _send(self, number: int, context: int, max_tokens: int) -> None:
        request = GenerateRequest(
            request_id=f"chatcmpl-{number:032x}",
            # Ragged, so that not all slots fill a block in the same step.
            prompt_token_ids=[number * 7919 % 50_000 + i for i in range(context - number % BLOCK_SIZE)],
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0),
        )
        self._front.send(msgspec.msgpack.encode(request))

    def _build_core(self, batch: int, max_model_len: int, gamma: int) -> EngineCore:
        blocks_per_slot = -(-max_model_len // BLOCK_SIZE)
        num_blocks = batch * blocks_per_slot
        slots = batch * (1 + gamma)  # so many positions are sampled in a step
        tables = SlotTables(slots, max_model_len, blocks_per_slot, num_blocks, torch.device("cpu"))
        drafts = SpeculativeConfig(method="draft", gamma=gamma, draft_model="none") if gamma else None
        config = EngineConfig(
            model="", served_names=("none",), max_num_seqs=slots, max_batch_tokens=8192, speculative=drafts
        )
        info = EngineInfo(model="none", max_model_len=max_model_len, device="none", dtype="none")
        core = EngineCore.from_config(
            config,
            NoDevice(tables, self.watch),
            info,
            num_blocks=num_blocks,
            step_seconds=StepSeconds({1: 1.0, slots: 1.0}, {1: 0.0, slots: 0.0}),  # every draft token is worth it
            draft_positions=max_model_len,
        )
        core.scheduler.budget = PrefillBudget(stretch=1e6)
        core.scheduler.schedule = self.watch.timed("schedule", core.scheduler.schedule)  # type: ignore[method-assign]
        core.scheduler.update = self.watch.timed("update", core.scheduler.update)  # type: ignore[method-assign]
        return core


def main() -> int:
    torch.set_num_threads(1)
    freeze_gc_heap()  # as the process does after its start
    steps = 200 if QUICK else 1000
    serving = Serving(BATCH, steps, Stopwatch())
    measured = [serving.timed_turn() for _ in range(steps)]
    assert serving.core.scheduler.stats().running == BATCH
    serving.close()
    median = {name: statistics.median(turn[name] for turn in measured) for name in measured[0]}
    rest = statistics.median(turn["total"] - turn["inputs"] for turn in measured)
    slow = statistics.quantiles((turn["total"] for turn in measured), n=100)[98]
    drafting = _drafting(steps // 5)
    return report(
        "host_step",
        [
            Figure("host_step_256", median["total"], "ms", "<=", TOTAL_MS),
            Figure("host_step_256_without_inputs", rest, "ms", "<=", CORE_MS),
            Figure("host_step_256_schedule", median["schedule"], "ms"),
            Figure("host_step_256_inputs", median["inputs"], "ms"),
            Figure("host_step_256_update", median["update"], "ms"),
            Figure("host_step_256_p99", slow, "ms"),
            Figure(f"host_step_{DRAFTING_BATCH}_drafting_{GAMMA}", drafting["total"], "ms", "<=", TOTAL_MS),
            *(
                Figure(f"host_step_{DRAFTING_BATCH}_drafting_{GAMMA}_{name}", drafting[name], "ms")
                for name in ("schedule", "inputs", "update")
            ),
        ],
    )


def _drafting(steps: int) -> dict[str, float]:
    """Medians of steps in which every decode has draft tokens. One is two turns: its launch, and its results, which are
    waited for before the next drafts."""
    serving = Serving(DRAFTING_BATCH, (steps + CATCH_UP_STEPS) * (GAMMA + 1), Stopwatch(), gamma=GAMMA)
    measured: list[dict[str, float]] = []
    drafted = 0
    while len(measured) < steps:
        both = serving.timed_turn(2)
        speculation = serving.core.state(epoch="", sequence=0, draining=False).speculation
        assert speculation is not None
        if speculation.draft_tokens - drafted == DRAFTING_BATCH * GAMMA:  # the draft model has caught up with all
            measured.append(both)
        drafted = speculation.draft_tokens
    serving.close()
    return {name: statistics.median(turn[name] for turn in measured) for name in measured[0]}


if __name__ == "__main__":
    sys.exit(main())
