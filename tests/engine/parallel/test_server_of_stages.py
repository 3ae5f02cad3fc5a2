"""A real server whose engine is two stages of two ranks: it answers as one device, and ends as one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_support.rank_servers import kill_rank, rank_pids, refusal, refusal_here, segments, stop_rank
from engine_support.server_process import ServerProcess, gone, running_server, wait_until

REQUEST = {"prompt": "What is a block table?", "max_tokens": 24, "temperature": 0.8, "seed": 7, "logprobs": 2}
LOOPING = {"prompt": "a b a b a b a b", "max_tokens": 96, "temperature": 0.0, "ignore_eos": True}
"""Of which an n-gram foresees much."""
FLAGS = "--dtype", "float32", "--kv_cache_bytes", "16MiB"


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short name, as the paths of sockets are short."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def server(folder: Path, text_model: Path) -> Iterator[ServerProcess]:
    with running_server(folder, text_model, "-pp", "2", *FLAGS, engine="real") as process:
        yield process


def test_it_answers_what_one_device_answers(folder: Path, text_model: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    answers = []
    for name, flags in (("o", []), ("p", ["-pp", "2", "-tp", "2"]), ("s", ["-pp", "2", "--decode_algo", "ngram"])):
        with running_server(folder / name, text_model, *flags, *FLAGS, engine="real") as server:
            found = server.post("/v1/completions", **REQUEST).json()["choices"][0]
            guided = server.post("/v1/completions", **{**REQUEST, "max_tokens": 200, "guided_json": schema})
            texts = guided.json()["choices"][0]["text"]
            assert isinstance(json.loads(texts)["a"], int)
            looping = server.post("/v1/completions", **LOOPING).json()
            answers.append((found["text"], found["logprobs"]["tokens"], texts, looping["choices"][0]["text"]))
            details = looping["usage"].get("completion_tokens_details") or {}
            assert (details.get("accepted_prediction_tokens", 0) > 0) == (name == "s")
            ranks = rank_pids(server)
            assert len(ranks) == {"o": 0, "p": 3, "s": 1}[name]
            assert all(bool(segments(rank)) == (name == "p") for rank in ranks)
            assert not any(Path(path).parent.exists() for rank in ranks for path in segments(rank))
            server.signal(signal.SIGTERM)
            assert server.process.wait(20) == 0
            assert all(gone(rank) for rank in ranks)
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("busy", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["busy", "idle"])
def test_a_stage_that_dies_ends_the_replica(server: ServerProcess, busy: bool) -> None:
    (rank,) = rank_pids(server)
    kill_rank(server, rank, busy=busy)


def test_a_stage_that_hangs_ends_the_replica(server: ServerProcess) -> None:
    (rank,) = rank_pids(server)
    stop_rank(server, rank, busy=True)


def test_nothing_outlives_the_server(server: ServerProcess) -> None:
    ranks = rank_pids(server)
    os.kill(server.process.pid, signal.SIGKILL)
    wait_until(lambda: gone(server.engine_pid) and all(gone(rank) for rank in ranks))
    assert not list(server.sockets.iterdir())


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["-pp", "9"], "--pipeline_parallel_size 9 is more than the model's"),
        (["-pp", "2", "-tp", "33"], "give 1 stage or more, and at most 64 ranks"),
        (["-pp", "2", "--decode_algo", "mtp"], "a draft head (decode_algo mtp) does not go together with"),
        (["-pp", "2", "--pipeline_micro_batch", "1"], "pipeline_micro_batch is 1; give 2, one for each stage, to 64"),
        (["--pipeline_micro_batch", "2"], "pipeline_micro_batch is 2, and there is one stage; leave it out"),
    ],
)
def test_what_cannot_be_is_one_line(text_model: Path, flags: list[str], says: str) -> None:
    assert says in refusal_here(text_model, *flags)


def test_too_little_memory_is_one_line(text_model: Path) -> None:
    """Which the engine finds out."""
    flags = "-pp", "2", "--max_model_len", "2048", "--kv_cache_bytes", "64k"
    assert "raise --kv_cache_bytes to" in refusal(text_model, *flags)
