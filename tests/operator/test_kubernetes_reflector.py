"""Following one kind: nothing is missed, whatever happens to lists and watches."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from operator_support.apiserver import Script, config_map

from blade_operator.cluster.kubernetes import reflector as module
from blade_operator.cluster.kubernetes.api import SILENCE, ApiError
from blade_operator.cluster.kubernetes.kinds import KINDS
from blade_operator.cluster.kubernetes.records import Records
from blade_operator.cluster.kubernetes.reflector import Reflector
from blade_operator.objects import Key

KEY = Key("team", "qwen")
EXPIRED = ("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody waits in these tests; how long they would have is kept."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waited


async def _follow(script: Script) -> tuple[dict[str, dict[str, Any]], list[Key]]:
    """Run to the end of ``script``: what is known then, by name, and who was told of changes."""
    records, told = Records(), list[Key]()
    records.subscribe(told.append)
    api: Any = script
    task = asyncio.create_task(Reflector(api, KINDS["ConfigMap"], None, records).run())
    finished = asyncio.create_task(script.finished.wait())
    await asyncio.wait([task, finished], return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert finished.done(), task
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return {obj["metadata"]["name"]: obj["data"] for obj in records.of(KEY).get("ConfigMap", [])}, told


async def test_a_list_comes_in_pages_and_the_watch_goes_on_from_its_version() -> None:
    script = Script()
    script.list(10, config_map("a", 3), more="next")
    script.list(10, config_map("b", 4))
    script.watch(
        ("ADDED", config_map("c", 11)),
        ("MODIFIED", config_map("a", 12, x="1")),
        ("DELETED", config_map("b", 13)),
        ("BOOKMARK", {"metadata": {"resourceVersion": "20"}}),
    )
    script.watch(("ADDED", config_map("d", 21)))
    known, _ = await _follow(script)
    assert known == {"a": {"x": "1"}, "c": {}, "d": {}}
    assert script.asked[1]["continue"] == "next"
    assert [asked.get("resourceVersion") for asked in script.asked] == [None, None, "10", "20"]
    assert all(asked["labelSelector"] == "app.kubernetes.io/managed-by=bladellm" for asked in script.asked)


@pytest.mark.parametrize("how", ["event", "status"])
async def test_when_history_is_gone_the_list_is_compared_so_that_deletions_are_seen(
    how: str, waits: list[float]
) -> None:
    script = Script()
    script.list(10, config_map("a", 3), config_map("b", 4))
    if how == "event":
        script.watch(EXPIRED)
    else:
        script.fail(ApiError(410, "Expired", "too old resource version"))
    script.list(30, config_map("b", 4), config_map("c", 25))
    known, told = await _follow(script)
    assert set(known) == {"b", "c"}
    assert len(told) == 4  # a, b; then c, and that a is gone: the same b is no news


async def test_a_connection_that_breaks_goes_on_where_it_was(waits: list[float]) -> None:
    script = Script()
    script.list(10)
    script.watch(("ADDED", config_map("a", 11)), ApiError(0, "Unreachable", "connection reset"))
    script.fail(ApiError(0, "Unreachable", "connection refused"))
    script.watch(("ADDED", config_map("b", 12)))
    known, _ = await _follow(script)
    assert set(known) == {"a", "b"}
    assert [asked.get("resourceVersion") for asked in script.asked] == [None, "10", "11", "11"]


async def test_while_the_server_fails_the_pauses_grow_and_what_is_known_stays(waits: list[float]) -> None:
    script = Script()
    script.list(10, config_map("a", 3))
    for _ in range(8):
        script.fail(ApiError(0, "Unreachable", "connection refused"))
    script.fail(ApiError(429, "TooManyRequests", "slow down", retry_after=77.0))
    known, _ = await _follow(script)
    assert set(known) == {"a"}
    assert waits[0] < 1 < waits[3] < waits[6]
    assert waits[7] <= module.PAUSE_MOST * 1.2
    assert waits[8] == 77.0


async def test_a_kind_that_is_not_there_yet_is_asked_for_again(waits: list[float]) -> None:
    script = Script()
    script.fail(ApiError(404, "NotFound", "the server could not find the requested resource"))
    script.list(10, config_map("a", 3))
    known, _ = await _follow(script)
    assert set(known) == {"a"}


def test_a_healthy_server_ends_a_watch_before_it_counts_as_dead() -> None:
    assert max(module.WATCH_SECONDS) < SILENCE


async def test_a_server_that_ends_every_watch_at_once_is_not_pestered(waits: list[float]) -> None:
    script = Script()
    script.list(10)
    script.watch()
    script.watch()
    await _follow(script)
    assert waits == [1, 1]
