"""State updates from the engine process to each of several API servers."""

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
    ClientToEngine,
    DrainUpdate,
    EngineReady,
    EngineToClient,
    GenerateRequest,
    Hello,
    StateUpdate,
    StepOutputs,
)
from blade_llm.engine.process import EngineProcess
from blade_llm.sampling.parameters import SamplingParams


class Engine:
    """An engine process's loop, turned by hand, and the sockets of two clients."""

    def __init__(self, context: zmq.Context[Any], parent_pipe: int) -> None:
        router = context.socket(zmq.ROUTER)
        router.bind("inproc://engine")
        self.clients = [context.socket(zmq.DEALER) for _ in range(2)]
        for client in self.clients:
            client.connect("inproc://engine")
        runner = FakeRunner(num_blocks=8, max_num_seqs=2, max_model_len=64, vocab_size=97)
        self._process = EngineProcess(make_core(runner), router, parent_pipe)

    def turn(self, *messages: tuple[int, ClientToEngine]) -> None:
        for client, message in messages:
            self.clients[client].send(msgspec.msgpack.encode(message))
        assert self._process.turn()

    def received(self, client: int) -> list[EngineToClient]:
        found = []
        while self.clients[client].poll(0):
            found.append(msgspec.msgpack.decode(self.clients[client].recv(), type=EngineToClient))
        return found


@pytest.fixture
def engine() -> Iterator[Engine]:
    context: zmq.Context[Any] = zmq.Context()
    parent_pipe, parent = os.pipe()
    yield Engine(context, parent_pipe)
    context.destroy(linger=0)
    os.close(parent_pipe)
    os.close(parent)


def test_a_client_that_connects_late_takes_no_updates_from_the_others(engine: Engine) -> None:
    engine.turn((0, Hello()))
    (ready,) = engine.received(0)
    assert isinstance(ready, EngineReady)
    engine.turn((0, DrainUpdate(draining=True)), (1, Hello()))
    _, late = engine.received(1)
    (update,) = engine.received(0)
    assert isinstance(update, StateUpdate)
    assert update == late
    assert (update.state.draining, update.state.sequence) == (True, ready.state.sequence + 1)


def _samples(prompt: list[int], *names: str) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=3, temperature=0.8, seed=1, ignore_eos=True)
    return GenerateRequest(request_id=names[0], sibling_ids=list(names[1:]), prompt_token_ids=prompt, sampling=sampling)


def _outputs(messages: list[EngineToClient]) -> dict[str, list[str | None]]:
    """Request id → the finish reasons of its outputs."""
    found: dict[str, list[str | None]] = {}
    for message in messages:
        if isinstance(message, StepOutputs):
            for output in message.outputs:
                found.setdefault(output.request_id, []).append(output.finish_reason)
    return found


def test_each_sample_goes_to_the_client_that_requested_it(engine: Engine) -> None:
    engine.turn((0, _samples([3] * 5, "a", "b")), (1, _samples([4] * 5, "c", "d", "e")))
    engine.turn((1, AbortRequest(request_ids=["d"])))
    for _ in range(12):
        engine.turn((0, Hello()))
    assert _outputs(engine.received(0)) == {"a": [None, None, "length"], "b": [None, None, "length"]}
    received = _outputs(engine.received(1))
    assert set(received) <= {"c", "d", "e"}
    assert (received["c"], received["e"]) == ([None, None, "length"],) * 2
    assert "length" not in received.get("d", [])


def test_a_refusal_ends_every_sample(engine: Engine) -> None:
    engine.turn((0, _samples([3] * 64, "a", "b")))
    assert _outputs(engine.received(0)) == {"a": ["abort"], "b": ["abort"]}
