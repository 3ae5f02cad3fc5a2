"""Events for what went well again."""

from __future__ import annotations

from typing import Any

import pytest

from blade_operator.status.events.transitions import transitions


def failure(pod: str, reason: str = "OOMKilled") -> dict[str, Any]:
    return {"pod": pod, "container": "engine", "exitCode": 137, "reason": reason, "message": "killed"}


def adapter(name: str, loaded: int = 2, reason: str = "") -> dict[str, Any]:
    return {"name": name, "desired": 2, "loaded": loaded} | ({"reason": reason} if reason else {})


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def said(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(event.type, event.reason, event.message) for event in transitions(before, after)]


def test_a_pod_that_works_again_is_repaired() -> None:
    before = {"failures": [failure("a"), failure("b", "Error")]}
    assert said(before, {"failures": [failure("b", "Error")]}) == [
        ("Normal", "Repaired", "no longer failing: a (OOMKilled)")
    ]
    assert said(before, {"failures": []}) == [("Normal", "Repaired", "no longer failing: a (OOMKilled), b (Error)")]


def test_many_pods_are_one_event() -> None:
    before = {"failures": [failure(f"p{number}") for number in range(9)]}
    [(_, _, message)] = said(before, {})
    assert message.endswith("p2 (OOMKilled) and 6 more")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"failures": [failure("a")]}, {"failures": [failure("a")]}),
        ({"failures": [failure("")]}, {"failures": []}),  # of no pod: a quota, for example, which has conditions
        ({}, {"failures": []}),
        ({"adapters": [adapter("a")]}, {"adapters": [adapter("a")]}),
        ({"adapters": [adapter("a", 1)]}, {"adapters": [adapter("a", 1)]}),
        ({"adapters": None}, {"adapters": [adapter("a", 2, "replaced by another")]}),
        ({"revision": {"failed": "x", "stable": "y"}}, {"revision": {"failed": "x", "stable": "z"}}),
        ({"revision": {"failed": "x", "stable": "y"}}, {"revision": {"failed": "", "stable": "z"}}),
    ],
)
def test_nothing_is_said_twice_or_too_early(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert said(before, after) == []


def test_loaded_adapters_and_a_rollback() -> None:
    assert said({"adapters": [adapter("a", 1)]}, {"adapters": [adapter("a")]}) == [
        ("Normal", "AdapterLoaded", "on all engines that are to have it: a")
    ]
    assert said({}, {"revision": {"failed": "new", "stable": "old"}}) == [
        ("Warning", "RolledBack", "revision new did not become ready: old runs instead")
    ]


@pytest.mark.parametrize("reason", ["LoadFailed", "LeftOut"])
def test_an_adapter_that_cannot_be_loaded_is_a_warning_once(reason: str) -> None:
    loading = {"conditions": [condition("AdaptersReady", "False", "Loading")]}
    failed = {"conditions": [condition("AdaptersReady", "False", reason, "adapter a: no such file")]}
    loaded = {"conditions": [condition("AdaptersReady", "True", "Loaded")]}
    assert said(loading, failed) == [("Warning", reason, "adapter a: no such file")]
    assert said(failed, failed) == said({}, loading) == said(failed, loaded) == []
