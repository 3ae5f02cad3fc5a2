"""No change to a service under load loses, truncates or alters one request (docs/zero-loss.md).

``SOAK_RUNS`` is how often each change is made in the long form; ``-s`` shows what was counted.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from engine_support.tiny_text import write_model
from operator_support.changing import CHANGES, Changing, engines_replaced, routers_replaced
from operator_support.loop import loop

from e2e.support.steady_load import questions

RUNS = int(os.environ.get("SOAK_RUNS", "20"))


def test_engines_and_routers_are_replaced_and_no_request_is_lost(tmp_path: Path) -> None:
    with loop(tmp_path, paced=True) as running:
        service = Changing(running, write_model(tmp_path / "model"), replicas=1)
        service.start()
        with service.load(questions(lengths=(1, 8, 60))) as load:
            for change in (engines_replaced, routers_replaced):
                change(service)
                load.more()
        assert load.lost == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_made_again_and_again_loses_no_request(tmp_path: Path, name: str) -> None:
    with loop(tmp_path, paced=True) as running:
        service = Changing(running, write_model(tmp_path / "model"), router={"replicas": 2})
        service.start()
        with service.load() as load:
            for _ in range(RUNS):
                CHANGES[name](service)
                load.more()
        print(f"\n{name:24} {RUNS:3} runs, {load}")
        assert load.lost == []
