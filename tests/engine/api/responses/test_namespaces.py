"""Names of functions in namespaces, as the model knows them."""

from __future__ import annotations

import re

import pytest

from blade_llm.api.common.errors import ApiError
from blade_llm.api.responses.functions import qualified, read_tools


def test_names() -> None:
    assert qualified("agents", "spawn") == "agents__spawn"
    assert qualified("mcp__files__", "read") == "mcp__files__read"


def test_long_names_stay_apart_and_are_names() -> None:
    found = {qualified("n" * 40, "f" * 40 + str(number)) for number in range(50)}
    assert len(found) == 50
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{64}", name) for name in found)
    assert qualified("n" * 40, "f" * 40) == qualified("n" * 40, "f" * 40)


def test_both_descriptions_are_shown() -> None:
    inner = {"type": "function", "name": "f", "description": "Reads."}
    tools = read_tools([{"type": "namespace", "name": "n", "description": "Files.", "tools": [inner]}])
    assert tools.chat == [{"type": "function", "function": {"name": "n__f", "description": "Files.\n\nReads."}}]
    assert tools.namespaces == {"n__f": ("n", "f")}


def test_a_function_as_chats_have_it() -> None:
    tools = read_tools([{"type": "function", "function": {"name": "f", "strict": True}}])
    assert tools.chat == [{"type": "function", "function": {"name": "f", "strict": True}}]


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, r"tools\[0\]\.tools\[0\]\.name"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "mcp", "name": "x"}]}, r"tools\[0\]\.tools\[0\]\.type"),
        ({"type": "namespace", "tools": []}, r"tools\[0\]\.name"),
        ({"type": None}, r"tools\[0\]\.type"),
        ({}, r"tools\[0\]\.type"),
    ],
    ids=str,
)
def test_what_is_no_tool(tool: dict[str, object], place: str) -> None:
    with pytest.raises(ApiError, match=place) as caught:
        read_tools([tool])
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("size", "number", "place"),
    [(20_000, 1, r"tools\[0\]\.description has 20000 characters"), (10_000, 129, "more than 128 functions")],
)
def test_no_request_grows_by_its_namespaces(size: int, number: int, place: str) -> None:
    inner = [{"type": "function", "name": f"f{index}", "description": "x"} for index in range(number)]
    tool = {"type": "namespace", "name": "n", "description": "d" * size, "tools": inner}
    with pytest.raises(ApiError, match=place) as caught:
        read_tools([tool])
    assert (caught.value.status, caught.value.detail.param) == (400, "tools")
