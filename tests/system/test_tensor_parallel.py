"""Ranks from `blade_operator local up` to a client: the manifest of examples/, beside the same model on one rank; and a
rank that is killed under a stream."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from openai import OpenAI
from operator_support.loop import Loop, loop

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("plain", "ranks")
REQUEST: dict[str, Any] = {"model": "demo", "prompt": "What does len do?", "temperature": 0.8, "seed": 11}
LONG = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}


def manifests() -> list[dict[str, Any]]:
    """The example with two replicas and the same without ranks, both in fp32, where tokens are the same."""
    made = []
    for name in NAMES:
        text = (EXAMPLES / "tensor-parallel.yaml").read_text()
        manifest = yaml.safe_load(text.replace("file:///opt/bladellm/examples/", f"file://{EXAMPLES}/"))
        manifest["metadata"]["name"] = name
        engine = manifest["spec"]["engine"]
        engine["dtype"] = "float32"
        if name == "plain":
            del engine["gpus"]
        else:
            manifest["spec"]["replicas"] = 2
        made.append(manifest)
    return made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    folder = tmp_path_factory.mktemp("loop")
    (folder / "services.yaml").write_text(yaml.safe_dump_all(manifests()))
    with loop(folder, real=True) as each:
        each.environment["OMP_NUM_THREADS"] = "1"
        each.start("-f", str(folder / "services.yaml"))
        each.until(lambda: each.ready("plain") and each.ready("ranks", 2), 200)
        yield each


def client(loop: Loop, name: str) -> OpenAI:
    return OpenAI(base_url=loop.service(name)["status"]["url"], api_key="none", max_retries=0, timeout=120)


def ranks_of(loop: Loop) -> list[psutil.Process]:
    """The processes of ranks other than rank 0, of both replicas."""
    assert loop.process is not None
    below = psutil.Process(loop.process.pid).children(recursive=True)
    return [each for each in below if "blade_llm.engine.ranks.worker" in each.cmdline()]


def busiest(processes: list[psutil.Process]) -> psutil.Process:
    """The one that computes for a stream."""
    before = [sum(each.cpu_times()[:2]) for each in processes]
    while True:
        time.sleep(0.1)
        used = [sum(each.cpu_times()[:2]) - then for each, then in zip(processes, before, strict=True)]
        if max(used) > 0.05 + 2 * min(used):
            return processes[used.index(max(used))]


@pytest.mark.timeout(300)
def test_a_killed_rank_changes_no_stream_and_comes_back(running: Loop) -> None:
    ranks = ranks_of(running)
    assert len(ranks) == 2
    assert running.service("ranks")["status"]["fit"]["ranks"] == 2
    with client(running, "plain") as one, client(running, "ranks") as several:
        expected = one.completions.create(**REQUEST, **LONG).choices[0].text
        parts: list[str] = []
        for event in several.completions.create(**REQUEST, **LONG, stream=True):
            parts.append(event.choices[0].text)
            if len(parts) == 20:
                killed = busiest(ranks)
                os.kill(killed.pid, signal.SIGKILL)
        assert "".join(parts) == expected
        running.until(lambda: len({each.pid for each in ranks_of(running)} - {killed.pid}) == 2, 60)
        running.until(lambda: running.ready("ranks", 2), 60)
        again = several.completions.create(**REQUEST, max_tokens=40).choices[0].text
        assert again == one.completions.create(**REQUEST, max_tokens=40).choices[0].text
