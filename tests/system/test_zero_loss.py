"""No change to a service under load loses, truncates or alters one request (docs/zero-loss.md).

``SOAK_RUNS`` is how often each change is made in the long form; ``-s`` shows what was counted.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from benchmarks.fleet import DEMO_MODEL
from engine_support.tiny_text import write_model
from operator_support.changing import (
    CHANGES,
    KEPT,
    Change,
    Changing,
    adapters_changed,
    engines_replaced,
    pool_turned,
    routers_replaced,
)
from operator_support.loop import loop
from operator_support.mortal_loop import make_mortal

from e2e.support.completions import Question
from e2e.support.steady_load import FRESH, SLOW, STEADY, THINKING, questions

RUNS = int(os.environ.get("SOAK_RUNS", "20"))


def test_engines_and_routers_are_replaced_and_no_request_is_lost(tmp_path: Path) -> None:
    with loop(tmp_path, paced=True) as running:
        service = Changing(running, write_model(tmp_path / "model"), replicas=1)
        service.start()
        with service.load(questions(lengths=(1, 8, 60)), (STEADY, THINKING, FRESH, SLOW)) as load:
            for change in (engines_replaced, routers_replaced):
                change(service)
                load.more()
        load.check()


def made_again_and_again(service: Changing, change: Change, asked: list[Question], what: str) -> None:
    """Make a change `RUNS` times, and print what was counted."""
    service.start()
    with service.load(asked) as load:
        for _ in range(RUNS):
            change(service)
            load.more()
    print(f"\n{what:28} {RUNS:3} runs, {load.tally()}")
    load.check()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_made_again_and_again_loses_no_request(tmp_path: Path, name: str) -> None:
    with loop(tmp_path, paced=True) as running:
        service = Changing(running, write_model(tmp_path / "model"), router={"replicas": 2})
        lengths = (1, 30, 1000) if name.endswith("drain") else (1, 8, 30, 120, 300)
        made_again_and_again(service, CHANGES[name], questions(lengths=lengths), name)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_engines_that_go_to_standby_and_come_back_lose_no_request(tmp_path: Path) -> None:
    scaling = {"mode": "Concurrency", "min": 1, "max": 1, "target": {"concurrency": 1000}, "standby": 1}
    with loop(tmp_path, paced=True) as running:
        model = write_model(tmp_path / "model")
        service = Changing(running, model, replicas=1, scaling=scaling, router={"replicas": 2})
        made_again_and_again(service, pool_turned, questions(lengths=(1, 8, 30, 120, 300)), "pool_turned")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ["engines_replaced", "engine_killed", "adapters_changed"])
def test_a_change_of_real_engines_with_adapters_loses_no_request(tmp_path: Path, name: str) -> None:
    with loop(tmp_path, real=True) as running:
        running.environment["OMP_NUM_THREADS"] = "1"
        engine = {"dtype": "float32", "kvCacheBytes": "64Mi", "lora": {"maxGPU": 4, "maxCPU": 8}}
        service = Changing(running, DEMO_MODEL, engine=engine, adapters=[KEPT], router={"replicas": 2})
        asked = questions(lengths=(1, 8, 30, 120), models=("", KEPT["name"]))
        made_again_and_again(service, {**CHANGES, "adapters_changed": adapters_changed}[name], asked, f"{name} (real)")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_operator_dies_at_each_write_of_a_change_and_no_request_is_lost(tmp_path: Path) -> None:
    with loop(tmp_path, paced=True) as running:
        writes_left = make_mortal(running)
        service = Changing(running, write_model(tmp_path / "model"), replicas=1)
        service.start()
        service.code = None
        with service.load() as load:
            for write in itertools.count(1):
                writes_left.write_text(str(write))
                service.replace_all()
                running.until(lambda: not running.alive or service.is_settled(), 120)
                if running.alive:
                    break
                running.start()
                service.settled()
                load.more()
                load.check()
        print(f"\n{'operator_dies_at_a_write':24} {write - 1:3} runs, {load.tally()}")
        assert write > 20
        load.check()
