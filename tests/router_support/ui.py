"""A viewer of the web UI's stream, which keeps the state as the page does, and an operator's report for it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

Event = tuple[str, dict[str, Any]]


def report(at: float = 1000.0, **status: Any) -> dict[str, Any]:
    """An operator's report of a service; ``status``: further fields of its status."""
    condition = {"type": "Ready", "status": "True", "reason": "AllReady", "message": "node-7 says so"}
    return {
        "reported": at,
        "object": {
            "apiVersion": "serving.bladellm.io/v1alpha1",
            "kind": "LLMService",
            "metadata": {"name": "qwen", "namespace": "default", "generation": 3},
            "spec": {"model": {"uri": "hf://Qwen/Qwen3-8B"}},
            "status": {"phase": "Ready", "conditions": [condition]} | status,
        },
        "pods": [{"name": "qwen-1", "role": "engine", "node": "node-7"}],
        "events": [{"time": 1.0, "type": "Normal", "reason": "Ready", "message": "m", "object": "o", "count": 1}],
    }


class Viewer:
    """One open page. ``state`` is the snapshot with all updates merged in."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.state: dict[str, Any] = {}
        self.events: list[Event] = []
        self._lines = response.aiter_lines()

    async def next(self) -> Event:
        """The next event; an error after ten seconds."""
        name = ""
        async with asyncio.timeout(10):
            async for line in self._lines:
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    event = name, json.loads(line.removeprefix("data: "))
                    self._merge(*event)
                    self.events.append(event)
                    return event
        raise EOFError("the stream has ended")

    async def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Read until the state is so; returns it."""
        if not self.state:
            await self.next()
        for _ in range(20):
            if condition(self.state):
                return self.state
            await self.next()
        raise AssertionError(f"never became true; the last state is {self.state}")

    async def until_it_ends(self) -> None:
        """Read until the router ends the stream."""
        with contextlib.suppress(EOFError):
            while True:
                await self.next()

    def row(self, id: str) -> dict[str, Any] | None:
        """The request of that id."""
        return next((row for row in self.state["requests"] if row["id"] == id), None)

    def _merge(self, name: str, data: dict[str, Any]) -> None:
        if name == "snapshot":
            self.state = data
            return
        rows = {row["id"]: row for row in (*self.state["requests"], *data.pop("requests", []))}
        points = [*self.state["traffic"]["points"], *data.pop("traffic", {"points": []})["points"]]
        self.state |= data | {"requests": list(rows.values()), "traffic": {"interval": 1, "points": points}}


@contextlib.asynccontextmanager
async def viewing(client: httpx.AsyncClient, secret: str = "") -> AsyncIterator[Viewer]:
    """Open the stream, with a key if there is one."""
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    async with client.stream("GET", "/ui/stream", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        yield Viewer(response)
