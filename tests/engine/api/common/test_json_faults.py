"""A field that is there twice is refused, and looking for one costs an ordinary body next to nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blade_llm.api.common import json_faults
from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.json_faults import check_names

TALK = [{"role": "user", "content": 'a "user", a "model" and more'}, {"role": "user", "content": '"user": 5'}]


def _looked(monkeypatch: pytest.MonkeyPatch, body: bytes) -> int:
    """How often ``body`` is parsed again."""
    looks: list[bytes] = []
    check = json_faults._check_twice

    def look(found: bytes) -> None:
        looks.append(found)
        check(found)

    monkeypatch.setattr(json_faults, "_check_twice", look)
    check_names(body, json.loads(body))
    return len(looks)


def test_a_name_that_is_a_value_too_is_no_reason_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    fields: dict[str, Any] = {"user": "user", "model": "model", "messages": TALK, "stop": ["stop", "user"]}
    assert _looked(monkeypatch, json.dumps(fields).encode()) == 0


def test_a_name_further_in_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _looked(monkeypatch, b'{"user": "x", "metadata": {"user": "y"}}') == 1


@pytest.mark.parametrize("colon", [":", " :", "\n\t: "])
def test_a_field_that_is_there_twice(colon: str) -> None:
    body = f'{{"n"{colon}1, "prompt": "x", "n":2}}'.encode()
    with pytest.raises(ApiError, match="'n' is given twice"):
        check_names(body, json.loads(body))
