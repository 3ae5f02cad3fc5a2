"""``docs/compatibility.md`` says what the server does, and what it says of a field is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine_support.server_process import ServerProcess

from blade_llm.server.compatibility import markdown, rows

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
NEEDED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/embeddings": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run make generate"


def test_every_refused_field_is_refused_by_name_and_every_ignored_one_taken(server: ServerProcess) -> None:
    for row in rows():
        path = row.route.partition(" ")[2]
        if row.status == "works" or path not in NEEDED:
            continue
        response = server.post(path, **{**NEEDED[path], row.field: {"some": "thing"}})
        if row.status == "ignored":
            assert response.status_code == 200, row
        else:
            assert response.status_code == 400, row
            error = response.json()["error"]
            assert repr(row.field) in error["message"]
            assert error.get("param", row.field) == row.field, "Anthropic's errors have none"
            assert row.note
