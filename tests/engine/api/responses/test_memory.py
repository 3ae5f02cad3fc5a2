"""The conversation behind a response that is kept is no longer than a request may be."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.response_store import ResponseStore, ResponseStoreOptions
from blade_llm.api.common.response_writer import ResponseWriter
from blade_llm.api.responses.memory import Keeping, Kept, earlier_items, find, own_items


def _context(folder: Path, limit: int) -> Any:
    store = ResponseStore(ResponseStoreOptions(folder=str(folder / "kept")))
    return SimpleNamespace(responses=store, max_body_bytes=limit)


def test_a_conversation_of_many_turns_has_a_limit(tmp_path: Path) -> None:
    context = _context(tmp_path, 900)
    names = [f"resp_{number:032x}" for number in range(4)]
    for name, previous in zip(names, [None, *names], strict=False):
        said = [{"role": "assistant", "content": "b" * 100}]
        tools = [{"type": "function", "name": "c" * 10_000}]  # comes in every turn, and is no part of it
        body = {"id": name, "output": said, "tools": tools}
        kept = Kept(owner="me", previous=previous, input=[{"content": "a" * 100}], response=body)
        context.responses.put(name, msgspec.json.encode(kept))
    assert len(earlier_items(context, names[2], "me")) == 6
    with pytest.raises(ApiError, match="exceeds 900 bytes") as caught:
        earlier_items(context, names[3], "me")
    assert (caught.value.status, caught.value.detail.param) == (400, "previous_response_id")
    with pytest.raises(ApiError, match="not found"):
        earlier_items(context, names[2], "another")


def test_what_is_kept_is_made_off_the_event_loop(tmp_path: Path) -> None:
    context = _context(tmp_path, 900)
    context.response_writer = ResponseWriter(context.responses, lambda: None)
    name, threads = f"resp_{1:032x}", list[int]()

    def what(body: dict[str, Any]) -> Kept:
        threads.append(threading.get_ident())
        return Kept(owner="me", previous=None, input=own_items("hello"), response=body)

    async def main(keeping: Keeping, *bodies: dict[str, Any]) -> None:
        for body in bodies:
            keeping.ended(body)
        await keeping.settled()

    asyncio.run(main(Keeping(context, what)))  # it has not ended
    asyncio.run(main(Keeping(context, None), {"id": name, "output": []}))  # nobody wants it
    assert find(context, name, "me") is None
    asyncio.run(main(Keeping(context, what), {"id": name, "output": []}))
    assert find(context, name, "me") is not None
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    context.response_writer.close()
