"""An engine process with further ranks: the loss of one is its own end, with one message, and nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import zmq
from engine_support.fake_ranks import MEETS, config_for, received
from engine_support.idle import wait_for_sleep
from engine_support.server_process import TESTS, gone, wait_until

from blade_llm.engine.launch import EngineHandle
from blade_llm.engine.messages import EngineReady, EngineToClient, GenerateRequest, Hello, StepOutputs
from blade_llm.sampling.parameters import SamplingParams


@dataclass
class Engine:
    """An engine process that is ready, a client's socket, and what the ranks write to."""

    handle: EngineHandle
    client: zmq.Socket[bytes]
    folder: Path
    ranks: list[int]
    """Process ids, from rank 1 on."""

    def request(self, first: int, tokens: int = 3) -> None:
        sampling = SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True)
        message = GenerateRequest(request_id="a", prompt_token_ids=[first, 4, 5], sampling=sampling)
        self.client.send(msgspec.msgpack.encode(message))

    def receive(self) -> EngineToClient:
        assert self.client.poll(60_000)
        return msgspec.msgpack.decode(self.client.recv(), type=EngineToClient)

    def failure(self) -> str:
        """Why it exits, which it does without its ranks."""
        failure = self.handle.wait()
        wait_until(lambda: all(map(gone, self.ranks)))
        assert not list(self.folder.glob("blade_llm-*"))
        return failure.message


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", "")))))
    handle = EngineHandle(build="engine_support.fake_ranked_engine:engine")
    handle.start(msgspec.structs.replace(config_for(tmp_path), tensor_parallel_size=3))
    context = zmq.Context[zmq.Socket[bytes]]()
    client: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    client.linger = 0
    client.connect(handle.address)
    client.send(msgspec.msgpack.encode(Hello()))
    engine = Engine(handle, client, tmp_path, [])
    assert isinstance(engine.receive(), EngineReady)
    engine.ranks = [int(pid) for pid in (tmp_path / "pids").read_text(encoding="utf-8").split()]
    yield engine
    handle.close()
    context.destroy(linger=0)
    wait_until(lambda: all(map(gone, engine.ranks)), 5)


def test_every_rank_computes_what_rank_0_computes(engine: Engine) -> None:
    engine.request(7)
    while not isinstance(found := engine.receive(), StepOutputs) or found.outputs[-1].finish_reason is None:
        pass
    wait_until(lambda: len(received(engine.folder, 1)) == len(received(engine.folder, 2)) == 6)
    assert received(engine.folder, 1) == received(engine.folder, 2)


def test_a_rank_that_is_killed_ends_an_idle_engine(engine: Engine) -> None:
    os.kill(engine.ranks[1], signal.SIGKILL)
    assert engine.failure().startswith("rank 2 was ended by SIGKILL")


def test_a_rank_that_is_killed_ends_an_engine_that_waits_for_it(engine: Engine) -> None:
    engine.request(MEETS)
    wait_until(lambda: bool(received(engine.folder, 1)))
    os.kill(engine.ranks[0], signal.SIGKILL)
    assert engine.failure().startswith("rank 1 was ended by SIGKILL")


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_rank_that_hangs_is_named_and_killed(engine: Engine, busy: bool) -> None:
    if busy:
        engine.request(MEETS)
        wait_until(lambda: bool(received(engine.folder, 1)))
    os.kill(engine.ranks[0], signal.SIGSTOP)
    assert engine.failure() == "rank 1 hangs: its process was stopped (SIGSTOP) and did not go on within 3 s"


def test_rank_0_may_hang_too(engine: Engine) -> None:
    os.kill(engine.handle.pid, signal.SIGSTOP)
    assert engine.failure() == "rank 0 hangs: its process was stopped (SIGSTOP) and did not go on within 3 s"


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_engine_leaves_no_rank(engine: Engine, stopped: bool) -> None:
    if stopped:
        os.kill(engine.ranks[0], signal.SIGSTOP)
    os.kill(engine.handle.pid, signal.SIGKILL)
    assert engine.failure().startswith("engine process was ended by SIGKILL")


def test_a_closed_engine_leaves_no_rank(engine: Engine) -> None:
    engine.handle.close()
    wait_until(lambda: all(map(gone, engine.ranks)), 5)


def test_idle_processes_use_no_cpu(engine: Engine) -> None:
    wait_for_sleep([engine.handle.pid, *engine.ranks])
