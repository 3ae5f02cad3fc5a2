"""The simulated states of the web UI are such as a router reports, of services that an operator would have."""

import copy

import pytest
from ui_support.scenarios import SCENARIOS
from ui_support.traffic import HISTORY, KEPT

from blade_operator.spec.parse import parse_service
from blade_operator.spec.status_fields import LLMServiceStatus

NOW = 1764460800.0


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("big", "bare", "own")])
def test_services_are_valid(name):
    held = SCENARIOS[name](NOW).snapshot()["service"]["object"]
    assert parse_service(held).name == "qwen"
    status = copy.deepcopy(held["status"])
    if "cost" not in LLMServiceStatus.model_fields:  # of a later release
        del status["cost"]
    assert LLMServiceStatus.model_validate(status).observed_generation == held["metadata"]["generation"]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "big"])
def test_updates_continue_a_snapshot(name):
    scenario = SCENARIOS[name](NOW)
    first = scenario.snapshot()
    assert len(first["traffic"]["points"]) == HISTORY
    known = {row["id"]: row for row in first["requests"]}
    for second in range(1, 31):
        update = scenario.update()
        assert [point["time"] for point in update["traffic"]["points"]] == [NOW + second]
        for row in update.get("requests", ()):
            assert known.get(row["id"]) != row, "an unchanged row is not sent again"
            known[row["id"]] = row
    last = scenario.snapshot()
    assert len(last["requests"]) <= KEPT
    for row in last["requests"]:
        assert {**row, "completionTokens": 0} == {**known[row["id"]], "completionTokens": 0}


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "big"])
def test_times_of_requests_are_in_order(name):
    for row in SCENARIOS[name](NOW).snapshot()["requests"]:
        assert (row["end"] is None) == (row["status"] is None)
        times = [row[key] for key in ("queued", "chosen", "firstToken", "end") if row[key] is not None]
        assert times == sorted(times), row


def test_a_key_sees_what_clients_may_know():
    snapshot = SCENARIOS["own"](NOW).snapshot()
    assert {row["key"] for row in snapshot["requests"]} == {"team-b"}
    assert snapshot["service"]["object"]["spec"] == {}
    assert snapshot["service"]["pods"] == []
    assert all(endpoint["address"] == "" and endpoint["running"] is None for endpoint in snapshot["endpoints"])


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "own"])
def test_some_requests_are_retried(name):
    rows = SCENARIOS[name](NOW).snapshot()["requests"]
    assert any(len(row["attempts"]) > 1 for row in rows)
    assert all(row["attempts"][-1]["endpoint"] == row["endpoint"] for row in rows)


def test_the_big_one_is_big():
    scenario = SCENARIOS["big"](NOW)
    snapshot = scenario.snapshot()
    assert len(snapshot["endpoints"]) == 64
    assert len(snapshot["requests"]) == KEPT
    assert 1800 <= scenario.update()["traffic"]["points"][0]["inFlight"] <= 2200
