"""Ranks without a model: builds for real processes of ranks 1 .. n-1.

A rank writes what it gets to ``rank-N`` in the folder that stands for the model, as the messages it came in. Some
steps, by their numbers, do something else. In place of a collective there is a file that somebody waits for.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import zmq

from blade_llm.config import EngineConfig
from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.ranks.messages import RankStart, encode_forward, encode_release_cache, encode_sampling
from blade_llm.engine.ranks.worker import connect
from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import NewRequest, ScheduledChunk, StepPlan

RAISES = 1001
"""Rank 1's forward pass raises in this step; the others wait in a collective."""
MEETS = 1002
"""All wait in a collective that rank 1 does not come to."""
STOPS = 1003
"""Rank 1 stops as by SIGSTOP."""
SLOW = 1004
"""The forward pass of this step takes :data:`SLOW_SECONDS`."""
SLOW_SECONDS = 4.0
"""Of computing: longer than a rank may do nothing."""
STUCK = 1005
"""Rank 1 waits for what never comes."""
LENGTH_BYTES = 4


def config_for(folder: Path) -> EngineConfig:
    return EngineConfig(model=str(folder), served_names=("fake",), max_num_seqs=8, max_kv_blocks=64, max_model_len=128)


def plan_of(step: int, slots: int = 1, *, sample: bool = True) -> StepPlan:
    """A step of ``slots`` slots."""
    chunks = [ScheduledChunk(slot, step, 1, sample, f"request-{slot}") for slot in range(slots)]
    return StepPlan(step, chunks)


def abort(folder: Path) -> None:
    """End the collectives that somebody waits in."""
    (folder / "abort").touch()


def meet(folder: Path, seconds: float = 30.0) -> None:
    """A collective that rank 1 does not come to. Raises RankLostError, when it is aborted or late."""
    from blade_llm.parallel.group import RankLostError

    deadline = time.monotonic() + seconds
    while not (folder / "abort").exists():
        if time.monotonic() > deadline:
            raise RankLostError(f"rank 1 did not come to a collective in {seconds:g} s")
        time.sleep(0.005)
    raise RankLostError("a rank is lost")


def received(folder: Path, rank: int) -> list[bytes]:
    """The messages that a rank has run."""
    data, messages = (folder / f"rank-{rank}").read_bytes(), []
    while data:
        end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
        messages.append(data[LENGTH_BYTES:end])
        data = data[end:]
    return messages


class RecordingRunner:
    """Runner of a rank that writes down what it is to run."""

    adapters = None

    def __init__(self, start: RankStart) -> None:
        self._rank = start.rank
        self._folder = start.config.model_dir
        self._file = (self._folder / f"rank-{start.rank}").open("wb", buffering=0)

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> StepPlan:
        self._write(encode_forward(plan))
        for image in plan.new_images:
            self._write(bytes(image.pixels))
        if plan.step == RAISES:
            if self._rank == 1:
                raise ValueError("the step is bad")
            meet(self._folder)
        if plan.step == MEETS and self._rank > 1:
            meet(self._folder)
        if plan.step == STOPS and self._rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if plan.step == SLOW:
            deadline = time.monotonic() + SLOW_SECONDS
            while time.monotonic() < deadline:
                pass
        if plan.step == STUCK and self._rank == 1:
            threading.Event().wait()
        return plan

    def draft_tokens(self, forward: object) -> dict[int, list[int]]:
        return {}

    def release_cache(self) -> None:
        self._write(encode_release_cache())

    def launch_sampling(self, forward: object, masks: TokenMasks | None = None) -> None:
        assert isinstance(forward, StepPlan)
        assert masks is None or masks.words.flags.writeable
        self._write(encode_sampling(masks))

    def _write(self, message: bytes) -> None:
        self._file.write(len(message).to_bytes(LENGTH_BYTES, "big") + message)


def without_torch() -> None:
    """Stand in for the module with the errors of collectives in a process of a test's own: it imports torch."""
    stand_in = ModuleType("blade_llm.parallel.group")
    error = type("CollectiveError", (RuntimeError,), {})
    stand_in.__dict__.update(CollectiveError=error, RankLostError=type("RankLostError", (error,), {}))
    sys.modules[stand_in.__name__] = stand_in


def recording(start: RankStart) -> RecordingRunner:
    """``engine_support.fake_ranks:recording``"""
    without_torch()
    return RecordingRunner(start)


def too_large(start: RankStart) -> RecordingRunner:
    """Rank 2 is out of memory while the others wait for it."""
    without_torch()
    if start.rank != 2:
        meet(start.config.model_dir)
    raise NotEnoughMemoryError("the weights do not fit; lower --kv_cache_bytes to 1")


def never_ready(start: RankStart) -> RecordingRunner:
    """Rank 1 loads for ever."""
    if start.rank == 1:
        time.sleep(1000)
    return RecordingRunner(start)


def twice(start: RankStart) -> RecordingRunner:
    """Two sockets say that they are rank 1, before rank 2 is ready."""
    if start.rank == 2:
        time.sleep(1000)
    twice.__dict__["kept"] = connect(zmq.Context.instance(), start)
    return RecordingRunner(start)


def renewed(start: RankStart) -> RecordingRunner:
    """The package is another one than when the process began."""
    sys.modules["__main__"].__dict__["package_version"] = lambda: "9.9"
    return RecordingRunner(start)


def masks_of_words(indices: Sequence[int], width: int, first: int = 0) -> TokenMasks:
    """Masks whose words count up."""
    words = np.arange(first, first + len(indices) * width, dtype=np.int32).reshape(len(indices), width)
    return TokenMasks(list(indices), words)


def new_request(slot: int, tokens: Sequence[int]) -> NewRequest:
    return NewRequest(slot, f"request-{slot}", list(tokens), len(tokens), SamplingParams(seed=1))


def failure(message: str, *, user_error: bool = False) -> EngineFailure:
    return EngineFailure(message=message, user_error=user_error)
