"""Requests to load adapters: repeated ever more seldom, and forgotten once the adapter is there."""

from __future__ import annotations

import pytest

from blade_operator import backoff
from blade_operator.controller.adapter_attempts import AdapterAttempts
from blade_operator.model.plan import LoadAdapter

SQL = LoadAdapter("pod-1", "sql", "/sql")
AT = ("pod-1", "sql")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(backoff, "delay", lambda failures: 2.0**failures)
    return [100.0]


def test_the_same_request_is_repeated_ever_more_seldom(now: list[float]) -> None:
    attempts = AdapterAttempts(lambda: now[0])
    waits = []
    for _ in range(4):
        assert not attempts.backs_off(SQL)
        attempts.record(SQL, "")
        start = now[0]
        while attempts.backs_off(SQL):
            now[0] += 0.5
        waits.append(now[0] - start)
    assert waits == [1.0, 2.0, 4.0, 8.0]


def test_another_request_is_made_at_once(now: list[float]) -> None:
    attempts = AdapterAttempts(lambda: now[0])
    attempts.record(SQL, "no such folder")
    assert not attempts.backs_off(LoadAdapter("pod-1", "sql", "/other"))
    assert not attempts.backs_off(LoadAdapter("pod-2", "sql", "/sql"))
    assert attempts.refused == {AT: "no such folder"}
    attempts.record(LoadAdapter("pod-1", "sql", "/other"), "")
    assert attempts.refused == {}


def test_what_is_there_is_forgotten_and_what_loads_is_not(now: list[float]) -> None:
    attempts = AdapterAttempts(lambda: now[0])
    attempts.record(SQL, "")
    attempts.retain({AT})
    assert attempts.backs_off(SQL)
    attempts.retain(())
    assert not attempts.backs_off(SQL)
