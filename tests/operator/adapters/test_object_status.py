"""The status of a LoRAAdapter that several services select."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from blade_operator.adapters.object_status import changed, updated

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(service: str, desired: int = 2, loaded: int = 2, reason: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"service": service, "desired": desired, "loaded": loaded}
    return found | ({"reason": reason} if reason else {})


def written(*entries: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    obj: dict[str, Any] = {"metadata": {"name": "law", "generation": generation}}
    for each in entries:
        obj["status"] = updated(obj, each["service"], each, NOW)
    return obj


def test_each_service_speaks_for_itself() -> None:
    status = written(entry("b", 3, 1, "p: it is loading"), entry("a"))["status"]
    assert [each["service"] for each in status["services"]] == ["a", "b"]
    assert status["engines"] == "3/5"
    assert (status["conditions"][0]["status"], status["conditions"][0]["message"]) == ("False", "b: p: it is loading")
    obj = {"metadata": {"name": "law", "generation": 1}, "status": status}
    later = updated(obj, "b", entry("b", 3, 3), NOW + timedelta(minutes=5))
    assert later["conditions"][0]["status"] == "True"
    assert later["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:05:00Z"
    assert later["engines"] == "5/5"


def test_the_time_of_a_condition_changes_with_it_alone() -> None:
    obj = written(entry("a", 2, 0))
    assert updated(obj, "a", entry("a", 2, 1), NOW + timedelta(minutes=5))["conditions"][0]["lastTransitionTime"] == (
        "2026-01-01T00:00:00Z"
    )


def test_one_that_is_left_out_is_not_ready_whatever_others_say() -> None:
    status = written(entry("a"), entry("b", 0, 0, "its name is one of the model's in b"))["status"]
    [condition] = status["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "LeftOut")
    assert condition["message"] == "b: its name is one of the model's in b"


def test_the_last_service_that_goes_takes_the_status_along() -> None:
    obj = written(entry("a"), entry("b"))
    obj["status"] = updated(obj, "a", None, NOW)
    assert [each["service"] for each in obj["status"]["services"]] == ["b"]
    assert updated(obj, "b", None, NOW) == {}


def test_services_in_a_status_are_bounded() -> None:
    status = written(*(entry(f"s{number:03}") for number in range(80)))["status"]
    assert len(status["services"]) == 64
    full = {"metadata": {"name": "law", "generation": 1}, "status": status}
    assert changed("s079", [full], {"law": entry("s079")}) == {}, "it would be written again and again"
    assert changed("a", [full], {"law": entry("a")}) == {"law": entry("a")}
    assert changed("s003", [full], {}) == {"law": None}


def test_only_what_is_not_said_yet_is_written() -> None:
    obj = written(entry("a"))
    assert changed("a", [obj], {"law": entry("a")}) == {}
    assert changed("a", [obj], {"law": entry("a", 3)}) == {"law": entry("a", 3)}
    assert changed("a", [obj], {}) == {"law": None}
    assert changed("b", [obj], {}) == {}
    obj["metadata"]["generation"] = 2
    assert changed("a", [obj], {"law": entry("a")}) == {"law": entry("a")}, "it speaks of this generation now"
