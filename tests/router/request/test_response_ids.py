"""The response that a request is about, as far as its body says it."""

import json
from typing import Any

import msgspec
import pytest

from blade_router.request.response_ids import MOST_ITEMS, response_of

NUMBER = f"0123abcd_{'0' * 32}"
REFERENCE = {"type": "item_reference", "id": f"fc_{NUMBER}_1"}
USER = {"role": "user", "content": "},{" * 10}


def referenced(items: Any) -> str:
    return response_of("/v1/responses", None, msgspec.Raw(json.dumps(items).encode()))


@pytest.mark.parametrize("kind", [{"type": "item_reference"}, {"type": None}, {"type": ""}, {}])
def test_the_last_item_that_is_referred_to(kind: dict[str, Any]) -> None:
    earlier = {**kind, "id": f"rs_{'9' * 8}_{'0' * 32}_0"}
    assert referenced([earlier, USER, {**kind, "id": f"msg_{NUMBER}_12"}, USER]) == f"resp_{NUMBER}"


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "role": "assistant", "id": f"msg_{NUMBER}_0", "content": "whole"},
        {"role": "assistant", "id": f"msg_{NUMBER}_0", "content": "whole"},
        {"type": "reasoning", "id": f"rs_{NUMBER}_0"},
        *({"id": name} for name in (f"msg_{NUMBER}", f"fco_{NUMBER}_0", f"msg_{NUMBER}_x", 5, None, [[NUMBER]])),
    ],
)
def test_what_is_no_reference(item: dict[str, Any]) -> None:
    assert referenced([USER, item]) == ""


@pytest.mark.parametrize("items", ["text", [1], [[]], {}, None])
def test_what_is_no_list_of_items(items: Any) -> None:
    assert referenced(items) == ""


def test_so_many_items_are_read_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each becomes an object, and a body can hold a million of them."""
    assert referenced([*[{}] * (MOST_ITEMS - 1), REFERENCE]) == f"resp_{NUMBER}"
    monkeypatch.setattr("blade_router.request.response_ids._items", None)
    assert referenced([*[{}] * (MOST_ITEMS + 1), REFERENCE]) == ""
