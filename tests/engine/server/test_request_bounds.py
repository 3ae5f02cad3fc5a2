"""What a client hears when the engine has no room for its request: how to ask for less, or when to come again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from engine_support.server_process import ServerProcess, running_server, wait_until

LONG = {"prompt": "hello", "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    """One slot, and one request that waits for it."""
    flags = ("--max_num_seqs", "1", "--max_waiting_requests", "1")
    folder = tmp_path_factory.mktemp("narrow")
    with running_server(folder, text_model, *flags) as server:
        yield server


async def test_a_request_for_which_there_is_no_room_to_wait_is_told_to_come_again(narrow: ServerProcess) -> None:
    url = f"{narrow.url}/v1/completions"
    assert narrow.state()["max_waiting"] == 1

    def active() -> int:
        state = narrow.state()
        return int(state["running"] + state["waiting"])

    async with httpx.AsyncClient(timeout=60) as client:
        tasks = []
        for count in (1, 2):
            tasks.append(asyncio.create_task(client.post(url, json=LONG)))
            await asyncio.to_thread(wait_until, lambda count=count: active() == count)
        for more in ({}, {"stream": True}):
            refused = await client.post(url, json={"prompt": "hello", "max_tokens": 2, **more})
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("overloaded_error", "busy")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    narrow.wait_idle()
    assert narrow.post("/v1/completions", prompt="hello", max_tokens=2).status_code == 200


@pytest.mark.parametrize(("field", "fields"), [("n", {"n": 17}), ("best_of", {"n": 2, "best_of": 17})])
def test_too_many_samples_are_refused_by_the_field_that_asked(
    narrow: ServerProcess, field: str, fields: dict[str, int]
) -> None:
    refused = narrow.post("/v1/completions", prompt="hello", max_tokens=2, **fields)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == field
    assert error["message"].startswith(f"{field} is 17, but one request may have 16 samples")
