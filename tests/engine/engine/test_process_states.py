"""State updates from the engine process to each of several API servers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from engine_support.adapter_core import Disk, core_of
from engine_support.fake_core import make_core
from engine_support.fake_runner import FakeRunner

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import (
    AbortRequest,
    AdapterReply,
    ClientToEngine,
    DrainUpdate,
    EngineReady,
    EngineToClient,
    GenerateRequest,
    Hello,
    LoadAdapter,
    StateUpdate,
    StepOutputs,
    UnloadAdapter,
)
from blade_llm.engine.process import STATE_INTERVAL_S, EngineProcess
from blade_llm.sampling.parameters import SamplingParams


class Engine:
    """An engine process's loop, turned by hand, and the sockets of two clients."""

    def __init__(self, context: zmq.Context[Any], parent_pipe: int, core: EngineCore | None = None) -> None:
        router = context.socket(zmq.ROUTER)
        router.bind("inproc://engine")
        self.clients = [context.socket(zmq.DEALER) for _ in range(2)]
        for client in self.clients:
            client.connect("inproc://engine")
        self.runner = FakeRunner(num_blocks=8, max_num_seqs=2, max_model_len=64, vocab_size=97)
        self._process = EngineProcess(core or make_core(self.runner), router, parent_pipe)

    def turn(self, *messages: tuple[int, ClientToEngine]) -> None:
        for client, message in messages:
            self.clients[client].send(msgspec.msgpack.encode(message))
        assert self._process.turn()

    def received(self, client: int) -> list[EngineToClient]:
        found = []
        while self.clients[client].poll(0):
            found.append(msgspec.msgpack.decode(self.clients[client].recv(), type=EngineToClient))
        return found


@contextlib.contextmanager
def running(core: EngineCore | None = None) -> Iterator[Engine]:
    context: zmq.Context[Any] = zmq.Context()
    parent_pipe, parent = os.pipe()
    yield Engine(context, parent_pipe, core)
    context.destroy(linger=0)
    os.close(parent_pipe)
    os.close(parent)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with running() as engine:
        yield engine


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


def test_a_standby_gives_its_cache_back_when_nothing_runs(engine: Engine) -> None:
    """Also after a request that was on its way; taken back in, it keeps what it caches."""

    def last_state() -> tuple[bool, bool]:
        for _ in range(12):  # three steps, and states
            engine.turn((0, Hello()))
        messages = engine.received(0)
        state = [message.state for message in messages if isinstance(message, EngineReady | StateUpdate)][-1]
        return state.draining, state.standby

    engine.turn((0, _samples([3] * 33, "a")), (0, DrainUpdate(draining=True, standby=True)))
    assert engine.runner.num_releases == 0
    last_state()
    assert engine.runner.num_releases == 1
    engine.turn((0, _samples([3] * 33, "b")))
    last_state()
    assert engine.runner.num_releases == 2
    time.sleep(STATE_INTERVAL_S)
    assert last_state() == (True, True)
    engine.turn((0, DrainUpdate(draining=True, standby=True)))  # said again: nothing new
    engine.turn((0, DrainUpdate(draining=False)), (0, _samples([3] * 33, "c")))
    last_state()
    engine.turn((0, _samples([3] * 33, "d")))
    time.sleep(STATE_INTERVAL_S)
    assert last_state() == (False, False)
    assert engine.runner.num_releases == 2
    assert engine.runner.num_computed == 3 * (33 + 2) + 1 + 2


def test_a_refusal_ends_every_sample(engine: Engine) -> None:
    engine.turn((0, _samples([3] * 64, "a", "b")))
    assert _outputs(engine.received(0)) == {"a": ["abort"], "b": ["abort"]}


def test_a_change_of_adapters_is_in_the_state_before_its_reply(tmp_path: Path) -> None:
    """However short the time since the last update."""
    with running(core_of(Disk(), tmp_path)) as engine:
        engine.turn((0, Hello()), (1, Hello()), (0, DrainUpdate(draining=True)))
        folder = str(tmp_path / "adapters" / "a")
        changes: list[tuple[ClientToEngine, tuple[str, ...]]] = [
            (LoadAdapter(call_id=1, name="mine", path=folder), ("mine",)),
            (UnloadAdapter(call_id=2, name="mine"), ()),
        ]
        for message, names in changes:
            for client in (0, 1):
                engine.received(client)
            engine.turn((0, message))
            while not (received := engine.received(0)) or not isinstance(received[-1], AdapterReply):
                engine.turn()
            for messages in (received[:-1], engine.received(1)):
                (update,) = messages
                assert isinstance(update, StateUpdate)
                assert update.state.adapters == names
