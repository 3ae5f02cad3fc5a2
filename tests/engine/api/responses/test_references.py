"""Items of ``input`` that only name an output item of a kept response."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.response_store import ResponseStore, ResponseStoreOptions
from blade_llm.api.responses.memory import Kept
from blade_llm.api.responses.references import has_references, item_number, resolved

RESPONSES = [f"resp_{number:032x}" for number in range(2)] + ["resp_0123abcd_" + "0" * 32]
USER = {"role": "user", "content": "x"}


def _id(response: str, index: int = 0) -> str:
    return f"msg_{item_number(response)}_{index}"


def _reference(name: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": name}


def _item(response: str, index: int) -> dict[str, Any]:
    return {"id": _id(response, index), "type": "message", "role": "assistant", "content": f"{index} " + "b" * 100}


def _context(folder: Path, limit: int = 10_000) -> Any:
    store = ResponseStore(ResponseStoreOptions(folder=str(folder / "kept")))
    context: Any = SimpleNamespace(responses=store, max_body_bytes=limit)
    for response in RESPONSES:
        body = {"id": response, "output": [_item(response, 0), _item(response, 1)]}
        kept = Kept(owner="me", previous=None, input=[{"content": "a"}], response=body)
        store.put(response, msgspec.json.encode(kept))
    return context


def test_they_become_what_they_name_and_other_items_stay(tmp_path: Path) -> None:
    names = [(RESPONSES[2], 1), (RESPONSES[0], 0), (RESPONSES[2], 1)]
    whole = {**_item(RESPONSES[1], 0), "content": "mine"}
    given = [USER, *(_reference(_id(*name)) for name in names), whole]
    found = resolved(_context(tmp_path), given, "me")
    assert found == [USER, *(_item(*name) for name in names), whole]


@pytest.mark.parametrize(
    "name",
    [_id(RESPONSES[0], 2), _id("resp_" + "f" * 32), "msg_1", "resp_" + "0" * 32, _id("resp_../../x"), "x" * 9_999, ""],
)
def test_what_is_not_kept_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ApiError, match=r"input\[1\]: Item with id .* not found") as caught:
        resolved(_context(tmp_path), [USER, _reference(name)], "me")
    detail = caught.value.detail
    assert (caught.value.status, detail.param, detail.code) == (400, "input", "item_not_found")
    assert len(detail.message) < 500


@pytest.mark.parametrize("kind", [{}, {"type": None}])
def test_the_type_of_a_reference_may_be_left_out(tmp_path: Path, kind: dict[str, None]) -> None:
    reference = {"id": _id(RESPONSES[1]), **kind}
    assert has_references([reference])
    assert resolved(_context(tmp_path), [reference], "me") == [_item(RESPONSES[1], 0)]


def test_the_items_of_another_caller_are_not_found(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="not found"):
        resolved(_context(tmp_path), [_reference(_id(RESPONSES[0]))], "another")


def test_they_are_no_longer_than_a_request_may_be(tmp_path: Path) -> None:
    context = _context(tmp_path, limit=800)
    given = [_reference(_id(RESPONSES[0]))] * 3
    assert len(resolved(context, given, "me")) == 3
    with pytest.raises(ApiError, match="exceed 800 bytes"):
        resolved(context, given * 2, "me")


@pytest.mark.parametrize(
    "items", ["text", [], [USER], [{"type": "item_reference"}], [_reference(3)], [7], [{"id": "msg_1", "role": "user"}]]
)
def test_what_names_nothing_is_none(items: Any) -> None:
    assert not has_references(items)
