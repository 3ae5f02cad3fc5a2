"""A real server whose engine is two processes: it answers as one, and ends as one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_support.pairwise import in_turn
from engine_support.rank_servers import kill_rank, rank_pids, refusal, refusal_here, segments, stop_rank
from engine_support.server_process import ServerProcess, gone, running_server, wait_until

REQUEST = {"prompt": "What is a block table?", "max_tokens": 24, "temperature": 0.8, "seed": 7, "logprobs": 2}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short name, as the paths of sockets are short."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def server(folder: Path, text_model: Path) -> Iterator[ServerProcess]:
    flags = "-tp", "2", "--dtype", "float32", "--kv_cache_bytes", "16MiB"
    with running_server(folder, text_model, *flags, engine="real") as process:
        yield process


def test_it_answers_what_one_rank_answers(server: ServerProcess, folder: Path, text_model: Path) -> None:
    flags = "--dtype", "float32", "--kv_cache_bytes", "16MiB"
    with running_server(folder / "o", text_model, *flags, engine="real") as other:
        expected = other.post("/v1/completions", **REQUEST).json()["choices"]
    assert server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"] == expected[0]["text"]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    guided = server.post("/v1/completions", **{**REQUEST, "max_tokens": 200, "guided_json": schema})
    assert isinstance(json.loads(guided.json()["choices"][0]["text"])["a"], int)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_rank_that_dies_ends_the_replica(server: ServerProcess, busy: bool) -> None:
    (rank,) = rank_pids(server)
    kill_rank(server, rank, busy=busy)


@pytest.mark.parametrize(("rank", "busy"), in_turn([0, 1], [True, False]), ids=["0-busy", "0-idle", "1-busy", "1-idle"])
def test_a_rank_that_hangs_ends_the_replica(server: ServerProcess, busy: bool, rank: int) -> None:
    pids = [server.engine_pid, *rank_pids(server)]
    stop_rank(server, pids[rank], rank=rank, busy=busy)
    wait_until(lambda: all(map(gone, pids)))


def test_nothing_outlives_the_server(server: ServerProcess) -> None:
    (rank,) = rank_pids(server)
    os.kill(server.process.pid, signal.SIGKILL)
    wait_until(lambda: gone(server.engine_pid) and gone(rank))
    assert not list(server.sockets.iterdir())


def test_shared_memory_has_no_name_once_the_ranks_have_joined(folder: Path, text_model: Path) -> None:
    with running_server(folder, text_model, "-tp", "2", "--kv_cache_bytes", "16MiB", engine="real") as server:
        (rank,) = rank_pids(server)
        mapped = segments(rank)
        assert mapped
        assert all(path.endswith(" (deleted)") for path in mapped)
        server.signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert gone(rank)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["-tp", "3"], "--tensor_parallel_size 3 does not divide the model's"),
        (["-tp", "65"], "give 1 to 64 ranks"),
        (["-tp", "2", "--enable_custom_allreduce"], "--enable_custom_allreduce is for GPUs, and there is none"),
        (["-tp", "2", "--decode_algo", "mtp"], "has no layers for multi-token prediction that are known here"),
    ],
)
def test_what_cannot_be_is_one_line(text_model: Path, flags: list[str], says: str) -> None:
    assert says in refusal_here(text_model, *flags)


def test_too_little_memory_is_one_line(text_model: Path) -> None:
    """Which the engine finds out."""
    flags = "-tp", "2", "--max_model_len", "2048", "--kv_cache_bytes", "64k"
    assert "raise --kv_cache_bytes to" in refusal(text_model, *flags)
