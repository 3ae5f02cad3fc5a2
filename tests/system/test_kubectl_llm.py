"""The words of ``kubectl llm`` on a real service of the local runtime: real engine, router and operator."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_support.loop import Loop, loop, manifest

MODEL = Path(__file__).parents[2] / "examples" / "demo_model" / "model"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """One ready service for the whole module."""
    folder = tmp_path_factory.mktemp("kubectl")
    with loop(folder, real=True) as each:
        engine = {"dtype": "float32", "kvCacheBytes": "64Mi", "maxNumSeqs": 4}
        each.start("-f", str(manifest(folder, "demo", model=MODEL, engine=engine, check={"items": ["shm"]})))
        each.until(lambda: each.ready("demo"), 120)
        yield each


def test_status_shows_the_whole_tree(running: Loop) -> None:
    first, *rest = running.command("status", "demo").splitlines()
    assert first.startswith("llm/demo  Ready  1/1 engines ready  http://127.0.0.1:")
    text = "\n".join(rest)
    for words in ("✓ Ready", "router demo-router-", "router: running", "engine demo-engine-", "engine: running"):
        assert words in text
    assert "check: completed" in text
    data = json.loads(running.command("status", "demo", "-o", "json"))
    assert [each["role"] for each in data["pods"]] == ["router", "engine"]
    assert not data["failures"]


def test_chat_streams_and_top_sees_it(running: Loop) -> None:
    answer = running.command("chat", "demo", "What does len do?", "--max_tokens", "24", "--temperature", "0")
    assert "number of items" in answer
    data = json.loads(running.command("top", "demo", "-o", "json", "--interval", "1"))["services"][0]
    [engine] = data["engines"]
    assert data["problems"] == []
    assert (data["running"], data["waiting"], engine["state"]) == (0, 0, "up")
    assert 0 < data["ttft_p50"] <= data["ttft_p99"]
    assert 0 < engine["tpot_p50"] <= engine["tpot_p99"]
    lines = running.command("top", "--once", "--interval", "1").splitlines()
    assert lines[0].split()[:4] == ["NAME", "STATE", "RUN", "WAIT"]
    assert [line.split()[0] for line in lines[1:3]] == ["demo", engine["name"].removeprefix("demo-")]
    refused = running.command("chat", "demo", "Hello", "--model", "nobody", code=1)
    assert refused.startswith("error: the service answered 404: ")


def test_command_is_what_runs(running: Loop) -> None:
    [line] = [line for line in running.command("command", "demo", "--role", "engine").splitlines() if "_server" in line]
    assert f"blade_llm_server --model {MODEL}" in line
    assert "--max_num_seqs 4" in line
    assert "blade_router" in running.command("command", "--role", "router")


def test_check_runs_here(running: Loop) -> None:
    out = running.command("check", "--", "--items", "shm")
    assert "check_shm       PASS" in out
    assert out.endswith("PASS 1, WARNING 0, FAILED 0\n")
    wrong = running.command("check", "--", "--items", "nothing", code=2)
    assert "nothing" in wrong


def test_bench_puts_load_on_it(running: Loop) -> None:
    flags = ("--num_requests", "4", "--concurrency", "2", "--input_len", "16", "--output_len", "4")
    out = running.command("bench", "demo", "--", *flags)
    assert "4 succeeded, 0 failed" in out


def test_doctor_finds_nothing_wrong_and_packs_up(running: Loop, tmp_path: Path) -> None:
    out = running.command("doctor", "--output_dir", str(tmp_path))
    assert "✓ nothing is wrong with demo" in out
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
        missing = archive.extractfile(next(each for each in archive if each.name.endswith("/missing.txt")))
        assert missing is not None
        assert missing.read() == b"nothing\n"
    assert "objects/default/LLMService/demo.yaml" in names
    assert any(name.startswith("logs/demo-engine-") and name.endswith("/engine.log") for name in names)
    assert any(name.startswith("metrics/demo-router-") for name in names)


def test_what_fails_comes_first_in_logs_and_is_explained(running: Loop, tmp_path: Path) -> None:
    """Last of all: a second service, whose engine cannot start."""
    wrong = manifest(
        tmp_path, "broken", model=MODEL, engine={"extraArgs": ["--no_such_flag"]}, check={"items": ["shm"]}
    )
    running.command("apply", "-f", str(wrong))
    running.until(lambda: running.service("broken").get("status", {}).get("failures"), 90)
    status = running.command("status", "broken")
    assert "no_such_flag" in status
    logs = running.command("logs", "broken")
    first = logs[logs.index("==> ") :].splitlines()[0]
    assert first.startswith("==> broken-engine-")
    assert " engine: " in first
    assert "no_such_flag" in logs
    found = running.command("doctor", "broken", "--no-bundle", code=1)
    assert "no_such_flag" in found
    assert "→ `kubectl llm logs broken` shows its log" in found
    assert "ready at" in running.command("logs", "demo", "--tail", "1")  # nothing of this one fails
    running.command("delete", "broken")
