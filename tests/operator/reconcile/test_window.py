"""Maintenance windows and pauses: cron in time zones, and what a held change does to a fake cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.reconcile.window import is_open, next_opening, window_problem
from blade_operator.spec.rollout_fields import Window

SATURDAYS = {"cron": "0 2 * * 6", "duration": "2h", "timeZone": "UTC"}
"""2026-01-03 is the first Saturday after the fake cluster's clock begins."""


def window(cron: str, duration: str = "1h", zone: str = "UTC") -> Window:
    return Window.model_validate({"cron": cron, "duration": duration, "timeZone": zone})


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "duration", "zone", "words"),
    [
        ("99 * * * *", "1h", "UTC", "spec.rollout.window.cron: '99 * * * *' names no time"),
        ("0 0 30 2 *", "1h", "UTC", "spec.rollout.window.cron"),
        ("a b c d e", "1h", "UTC", "use minute, hour, day, month, weekday"),
        ("R 2 * * *", "1h", "UTC", "write numbers in place of H and R"),
        ("h 2 * * *", "1h", "UTC", "write numbers in place of H and R"),
        ("0 2 * * thu", "1h", "UTC", ""),
        ("0 2 * mar 6", "1h", "Europe/Berlin", ""),
        ("0 2 * * 6", "0s", "UTC", "spec.rollout.window.duration: must be more than 0"),
        ("0 2 * * 6", "1h", "Mars/Olympus", "there is no time zone 'Mars/Olympus'"),
        ("0 2 * * 6", "1h", "../etc/passwd", "spec.rollout.window.timeZone"),
        ("0 2 * * 6", "1h", "", "spec.rollout.window.timeZone"),
    ],
)
def test_nonsense_is_named_with_its_field(cron: str, duration: str, zone: str, words: str) -> None:
    found = window_problem(window(cron, duration, zone))
    assert words in found
    assert bool(found) == bool(words)


def test_a_window_is_open_from_its_start_for_its_duration() -> None:
    weekly = window("0 2 * * 6", "90m")
    assert not is_open(weekly, at("2026-01-03T01:59:59"))
    assert is_open(weekly, at("2026-01-03T02:00:00"))
    assert is_open(weekly, at("2026-01-03T03:29:59"))
    assert not is_open(weekly, at("2026-01-03T03:30:00"))
    assert next_opening(weekly, at("2026-01-03T02:00:00")) == at("2026-01-10T02:00:00")


def test_a_window_longer_than_its_period_never_closes() -> None:
    always = window("0 * * * *", "61m")
    assert all(is_open(always, at("2026-01-01T00:00:00") + timedelta(minutes=7 * step)) for step in range(40))


@pytest.mark.parametrize(
    ("day", "first", "last"),
    [
        ("2026-03-28", "01:30", "02:29"),  # 2:30 in Berlin, still in winter
        ("2026-03-29", "01:30", "02:29"),  # 2:30 does not exist: an hour later
        ("2026-03-30", "00:30", "01:29"),
        ("2026-10-25", "00:30", "01:29"),  # 2:30 comes twice: the first one
        ("2026-10-26", "01:30", "02:29"),
    ],
)
def test_clock_changes_open_a_window_once_and_for_its_whole_duration(day: str, first: str, last: str) -> None:
    berlin = window("30 2 * * *", "1h", "Europe/Berlin")
    minutes = [at(f"{day}T00:00:00") + timedelta(minutes=step) for step in range(300)]
    inside = [f"{minute:%H:%M}" for minute in minutes if is_open(berlin, minute)]
    assert (inside[0], inside[-1], len(inside)) == (first, last, 60)
    assert next_opening(berlin, minutes[0]) == at(f"{day}T{first}:00")


def made(**spec: Any) -> MiniCluster:
    cluster = MiniCluster(service({"replicas": 2, **spec}))
    cluster.converge()
    return cluster


def engines(cluster: MiniCluster) -> list[int]:
    """Engines of each revision, those of the current one last."""
    current = cluster.service["status"]["revision"]["current"]
    counts = {
        ref.name: obj["spec"]["replicas"]
        for ref, obj in cluster.objects.items()
        if ref.kind == "Deployment" and "-engine-" in ref.name
    }
    return [count for _, count in sorted(counts.items(), key=lambda item: item[0].endswith(current))]


def condition(cluster: MiniCluster, kind: str) -> Object:
    return next(each for each in cluster.service["status"]["conditions"] if each["type"] == kind)


def test_a_change_of_a_paused_service_waits_and_its_engines_are_scaled_and_replaced_when_they_die() -> None:
    cluster = made(rollout={"paused": True})
    assert condition(cluster, "Progressing")["reason"] == "Complete"
    first = cluster.service["status"]["revision"]["current"]
    cluster.edit(engine={"maxNumSeqs": 8})
    cluster.converge()
    assert engines(cluster) == [2]
    progressing = condition(cluster, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("Unknown", "Paused")
    assert condition(cluster, "Reconciling")["status"] == "True"
    assert condition(cluster, "Ready")["status"] == "True"
    assert condition(cluster, "PreflightPassed")["status"] == "True"  # of the engines that run
    assert cluster.service["status"]["fit"]["revision"] == first
    cluster.edit(replicas=3)
    cluster.engine_pods[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.converge()
    assert {podutil.revision(pod) for pod in cluster.engine_pods} == {first}
    assert len(cluster.engine_pods) == 3
    cluster.now += timedelta(days=3)  # no deadline meanwhile
    cluster.edit(replicas=0)
    cluster.converge()
    cluster.edit(replicas=1)
    cluster.converge()
    assert {podutil.revision(pod) for pod in cluster.engine_pods} == {first}
    cluster.edit(rollout={"paused": False})
    cluster.converge()
    assert {podutil.revision(pod) for pod in cluster.engine_pods} == {cluster.service["status"]["revision"]["current"]}
    assert cluster.service["status"]["revision"]["current"] != first


def test_pausing_in_the_middle_ends_what_has_begun_and_no_more() -> None:
    cluster = made(replicas=3)
    cluster.edit(engine={"maxNumSeqs": 8})
    cluster.reconcile()
    cluster.run_controllers()  # one engine beyond the three starts
    cluster.edit(rollout={"paused": True})
    cluster.converge()
    assert engines(cluster) == [2, 1]
    assert "1 of 3 engines run revision" in condition(cluster, "Progressing")["message"]
    cluster.edit(rollout={})
    cluster.converge()
    assert engines(cluster) == [3]


def test_a_first_installation_waits_for_nothing() -> None:
    cluster = made(rollout={"paused": True, "window": SATURDAYS})
    assert engines(cluster) == [2]
    assert condition(cluster, "Ready")["status"] == "True"


def test_a_change_begins_in_the_window_and_the_condition_says_when() -> None:
    cluster = made(rollout={"window": SATURDAYS})
    cluster.edit(engine={"maxNumSeqs": 8})
    cluster.converge()
    assert engines(cluster) == [2]
    progressing = condition(cluster, "Progressing")
    assert progressing["reason"] == "WaitingForWindow"
    assert "it opens at 2026-01-03T02:00:00Z" in progressing["message"]
    cluster.now = datetime(2026, 1, 3, 2, tzinfo=UTC)
    cluster.reconcile()
    cluster.run_controllers()
    assert engines(cluster) == [2, 1]
    cluster.now = datetime(2026, 1, 3, 4, tzinfo=UTC)
    cluster.converge()
    assert engines(cluster) == [1, 1]  # what had begun has ended
    cluster.now = datetime(2026, 1, 10, 2, tzinfo=UTC)
    cluster.converge()
    assert engines(cluster) == [2]


def test_a_window_that_makes_no_sense_is_a_condition_and_the_service_is_served_and_scaled() -> None:
    cluster = made(rollout={"window": {**SATURDAYS, "cron": "99 * * * *"}})
    valid = condition(cluster, "SpecValid")
    assert (valid["status"], valid["reason"]) == ("False", "InvalidWindow")
    assert "spec.rollout.window.cron" in valid["message"]
    assert condition(cluster, "WorkersReady")["status"] == "True"
    cluster.edit(engine={"maxNumSeqs": 8}, replicas=3)
    cluster.converge()
    assert engines(cluster) == [3]
    assert condition(cluster, "Progressing")["reason"] == "WaitingForWindow"
    cluster.edit(rollout={})
    cluster.converge()
    assert condition(cluster, "Ready")["status"] == "True"
    assert engines(cluster) == [3]
