"""Real servers, each with a rank of its own, as two machines of one engine: they answer as one, and end as one."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from engine_support.machine_servers import MODEL_FLAGS, Machine, running_machine
from engine_support.rank_servers import end_of_stream, refusal, refusal_here
from engine_support.server_process import ServerProcess, gone, running_server, wait_until

from blade_llm.parallel.route import free_port

REQUEST = {"prompt": "What is a block table?", "max_tokens": 24, "temperature": 0.8, "seed": 7, "logprobs": 2}


@pytest.fixture
def ranks() -> tuple[str, ...]:
    return "-tp", "2"


@pytest.fixture
def flags(ranks: tuple[str, ...]) -> tuple[str, ...]:
    return (*MODEL_FLAGS, *ranks, "--nnodes", "2", "--dist_init_addr", f"127.0.0.1:{free_port()}")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short name, as the paths of sockets are short."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def machine(folder: Path, text_model: Path, flags: tuple[str, ...]) -> Iterator[Machine]:
    """Machine 1, which is there before machine 0."""
    with running_machine(folder, text_model, *flags, "--node_rank", "1") as made:
        yield made


@pytest.fixture
def server(folder: Path, text_model: Path, flags: tuple[str, ...], machine: Machine) -> Iterator[ServerProcess]:
    assert machine.get("/live").status_code == 200  # it listens once it has said where
    assert [machine.status(path) for path in ("/health", "/ready")] == [503, 503]
    with running_server(folder, text_model, *flags, engine="real") as process:
        wait_until(lambda: machine.status("/health") == 200)
        yield process


def failure_of(server: ServerProcess) -> str:
    """The one message with which it has ended."""
    assert server.process.wait(60) == 1
    (failure,) = [line for line in server.output.splitlines() if "the engine failed" in line]
    assert gone(server.engine_pid)
    return failure


def test_two_machines_are_one_engine(server: ServerProcess, machine: Machine, folder: Path, text_model: Path) -> None:
    with running_server(folder / "o", text_model, *MODEL_FLAGS, engine="real") as other:
        expected = other.post("/v1/completions", **REQUEST).json()["choices"]
    assert server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"] == expected[0]["text"]

    assert machine.status("/ready") == 200
    assert machine.get("/version").json() == httpx.get(f"{server.url}/version").json()
    for path in ("/v1/models", "/v1/completions", "/docs"):
        refused = machine.get(path)
        assert refused.status_code == 404
        assert "machine 0 at 127.0.0.1, the leader, which serves requests" in refused.json()["error"]["message"]

    rank = machine.rank_pid
    os.kill(rank, signal.SIGKILL)
    failure = failure_of(server)
    assert "machine 1 at 127.0.0.1: rank 1 was ended by SIGKILL" in failure
    assert machine.process.wait(60) == 1
    (error,) = machine.errors
    assert "rank 1 was ended by SIGKILL" in error


@pytest.mark.parametrize("ranks", [("-pp", "2"), pytest.param(("-pp", "2", "-tp", "2"), marks=pytest.mark.soak)])
def test_stages_on_two_machines(server: ServerProcess, machine: Machine, folder: Path, text_model: Path) -> None:
    with running_server(folder / "o", text_model, *MODEL_FLAGS, engine="real") as other:
        expected = other.post("/v1/completions", **REQUEST).json()["choices"]
    assert server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"] == expected[0]["text"]
    for connection in psutil.Process(server.engine_pid).net_connections():  # strangers harm no stage
        if connection.status == psutil.CONN_LISTEN:
            with socket.create_connection(connection.laddr[:2], 5) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"] == expected[0]["text"]
    machine.process.kill()
    assert "machine 1 at 127.0.0.1" in failure_of(server)


def test_a_machine_that_hangs_ends_the_replica(server: ServerProcess, machine: Machine) -> None:
    """In the middle of a step: rank 0 waits for a rank that does not come."""
    rank = machine.rank_pid
    end = end_of_stream(server, lambda: [os.kill(pid, signal.SIGSTOP) for pid in (machine.process.pid, rank)])
    assert "engine_dead" in end
    failure = failure_of(server)
    assert "machine 1 at 127.0.0.1 (rank 1) was not heard of for 3 s" in failure
    assert failure.rpartition("the engine failed: ")[2] in end.replace("\\", "")
    machine.process.send_signal(signal.SIGCONT)
    assert machine.process.wait(60) == 1
    wait_until(lambda: gone(rank))
    (error,) = machine.errors
    assert "the leader" in error


def test_a_rank_that_hangs_on_another_machine_ends_the_replica(server: ServerProcess, machine: Machine) -> None:
    """While the machine's own process answers."""
    rank = machine.rank_pid
    end = end_of_stream(server, lambda: os.kill(rank, signal.SIGSTOP))
    assert "engine_dead" in end
    says = "rank 1 hangs: its process was stopped (SIGSTOP) and did not go on within 3 s"
    assert f"machine 1 at 127.0.0.1: {says}" in failure_of(server)
    assert machine.process.wait(60) == 1
    assert gone(rank)
    (error,) = machine.errors
    assert says in error


def test_a_leader_that_dies_ends_the_other_machines(server: ServerProcess, machine: Machine) -> None:
    rank = machine.rank_pid
    server.kill()
    assert machine.process.wait(60) == 1
    assert gone(rank)
    (error,) = machine.errors
    assert re.search(r"machine 0 at 127\.0\.0\.1:\d+, the leader, is gone: it closed the connection", error)


def test_a_signal_waits_for_the_leader(server: ServerProcess, machine: Machine) -> None:
    """All machines get it at once, and the leader still has requests."""
    machine.process.send_signal(signal.SIGTERM)
    assert server.post("/v1/completions", **REQUEST).status_code == 200
    server.signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert machine.process.wait(60) == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--nnodes", "2", "--node_rank", "2", "--dist_init_addr", "a:1"],
            "node_rank is 2; with nnodes 2 machines are 0",
        ),
        (["--nnodes", "3", "--node_rank", "1", "--dist_init_addr", "a:1"], "nnodes is 3, which does not divide the 2"),
        (["--nnodes", "3", "--dist_init_addr", "a:1"], "nnodes is 3, which does not divide the 2 rank(s)"),
        (["--nnodes", "2"], "nnodes 2 needs dist_init_addr: HOST:PORT of the machine with node_rank 0"),
        (["--nnodes", "2", "--node_rank", "1"], "nnodes 2 needs dist_init_addr"),
        (["--nnodes", "2", "--dist_init_addr", "10.0.0.1"], "--dist_init_addr is '10.0.0.1'; give HOST:PORT"),
        (["--node_rank", "1"], "--node_rank 1 needs --nnodes"),
    ],
)
def test_what_cannot_be_is_one_line(text_model: Path, flags: list[str], says: str) -> None:
    assert says in refusal_here(text_model, "-tp", "2", *flags)


def test_a_leader_that_is_not_there_is_one_line(text_model: Path) -> None:
    flags = "--nnodes", "2", "--node_rank", "1", "--dist_init_addr", "127.0.0.1:9", "--dist_timeout", "0"
    assert "nobody answers at --dist_init_addr 127.0.0.1:9 after 0 s" in refusal(text_model, "-tp", "2", *flags)


def test_the_leader_says_what_is_wrong(text_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"{address}: the port is in use" in refusal(
            text_model, "-tp", "2", "--nnodes", "2", "--dist_init_addr", address
        )
    missing = refusal(text_model, "-tp", "2", "--nnodes", "2", "--dist_init_addr", address, "--dist_timeout", "0")
    assert "machine 1 did not join within 0 s" in missing
    assert f"nc -vz {address.replace(':', ' ')}" in missing
