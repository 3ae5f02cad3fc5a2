"""Every client library's program, against the product as ``make run`` starts it (``make test-clients``).

``BASE_URL`` (with ``/v1``) and ``MODEL`` name another server to try them on.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients_support.environments import CLIENTS, npm_groups, python_groups
from clients_support.programs import SECONDS, Program, command, programs
from clients_support.results import PAGE, Outcome, outcomes, page
from operator_support.loop import loop

pytestmark = pytest.mark.clients
MODEL = CLIENTS.parents[1] / "examples" / "demo_model" / "model"
FOUND: list[Outcome] = []


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if given := os.environ.get("BASE_URL"):
        yield given
        return
    with loop(tmp_path_factory.mktemp("clients"), real=True) as server:
        server.start("--model", str(MODEL), "--replicas", "2")
        server.until(lambda: server.ready("demo-model", 2), 300)
        yield f"http://127.0.0.1:{server.port}/v1"


@pytest.mark.timeout(SECONDS + 330)
@pytest.mark.parametrize("program", programs(), ids=str)
def test_a_client_works(program: Program, base_url: str, tmp_path: Path) -> None:
    line, environment = command(program, base_url, tmp_path)
    done = subprocess.run(
        line, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    found = outcomes(str(program), done.stdout)
    FOUND.extend(found)
    failed = [f"{each.case}:\n{each.error}" for each in found if each.error]
    assert not failed, "\n".join(failed)
    assert found, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_group_has_programs() -> None:
    agents = {"agent_clis"}  # which tests/engine/api/agents runs
    assert {program.group for program in programs()} | agents == {*python_groups(), *npm_groups()}


def test_the_page_says_what_was_found() -> None:
    """Written anew where it differs, so that the difference is to be seen in the checkout."""
    if {each.program for each in FOUND} != {str(program) for program in programs()}:
        pytest.skip("not every program ran")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(wanted := page(FOUND, text), encoding="utf-8")
    assert text == wanted, "docs/clients.md was another: it is written anew, look at it and commit it"
