"""What the engine process tells each of several fronts about itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from engine_support.fake_core import make_core
from engine_support.fake_runner import FakeRunner

from blade_llm.engine.messages import (
    AbortRequest,
    DrainUpdate,
    EngineReady,
    EngineToFront,
    FrontToEngine,
    GenerateRequest,
    Hello,
    StateUpdate,
    StepOutputs,
)
from blade_llm.engine.process import EngineProcess
from blade_llm.sampling.parameters import SamplingParams


class Engine:
    """An engine process's loop, turned by hand, and the sockets of two fronts."""

    def __init__(self, context: zmq.Context[Any], lifeline: int) -> None:
        router = context.socket(zmq.ROUTER)
        router.bind("inproc://engine")
        self.fronts = [context.socket(zmq.DEALER) for _ in range(2)]
        for front in self.fronts:
            front.connect("inproc://engine")
        runner = FakeRunner(num_blocks=8, max_num_seqs=2, max_model_len=64, vocab_size=97)
        self._process = EngineProcess(make_core(runner), router, lifeline)

    def turn(self, *messages: tuple[int, FrontToEngine]) -> None:
        for front, message in messages:
            self.fronts[front].send(msgspec.msgpack.encode(message))
        assert self._process.turn()

    def heard(self, front: int) -> list[EngineToFront]:
        found = []
        while self.fronts[front].poll(0):
            found.append(msgspec.msgpack.decode(self.fronts[front].recv(), type=EngineToFront))
        return found


@pytest.fixture
def engine() -> Iterator[Engine]:
    context: zmq.Context[Any] = zmq.Context()
    lifeline, parent = os.pipe()
    yield Engine(context, lifeline)
    context.destroy(linger=0)
    os.close(lifeline)
    os.close(parent)


def test_a_front_that_comes_late_takes_no_news_from_the_others(engine: Engine) -> None:
    engine.turn((0, Hello()))
    (ready,) = engine.heard(0)
    assert isinstance(ready, EngineReady)
    engine.turn((0, DrainUpdate(draining=True)), (1, Hello()))
    _, late = engine.heard(1)
    (update,) = engine.heard(0)
    assert isinstance(update, StateUpdate)
    assert update == late
    assert (update.state.draining, update.state.sequence) == (True, ready.state.sequence + 1)


def _samples(prompt: list[int], *names: str) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=3, temperature=0.8, seed=1, ignore_eos=True)
    return GenerateRequest(request_id=names[0], sibling_ids=list(names[1:]), prompt_token_ids=prompt, sampling=sampling)


def _outputs(messages: list[EngineToFront]) -> dict[str, list[str | None]]:
    """Request id → the finish reasons of its outputs."""
    found: dict[str, list[str | None]] = {}
    for message in messages:
        if isinstance(message, StepOutputs):
            for output in message.outputs:
                found.setdefault(output.request_id, []).append(output.finish_reason)
    return found


def test_each_sample_goes_to_the_front_that_asked(engine: Engine) -> None:
    engine.turn((0, _samples([3] * 5, "a", "b")), (1, _samples([4] * 5, "c", "d", "e")))
    engine.turn((1, AbortRequest(request_ids=["d"])))
    for _ in range(12):
        engine.turn((0, Hello()))
    assert _outputs(engine.heard(0)) == {"a": [None, None, "length"], "b": [None, None, "length"]}
    heard = _outputs(engine.heard(1))
    assert set(heard) <= {"c", "d", "e"}
    assert (heard["c"], heard["e"]) == ([None, None, "length"],) * 2
    assert "length" not in heard.get("d", [])


def test_a_refusal_ends_every_sample(engine: Engine) -> None:
    engine.turn((0, _samples([3] * 64, "a", "b")))
    assert _outputs(engine.heard(0)) == {"a": ["abort"], "b": ["abort"]}
