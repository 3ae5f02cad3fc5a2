"""What the Kubernetes tests stand on: a clock that is set by hand, and the few lines of an API server they need."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from blade_operator.cluster.kubernetes.api import ApiError
from blade_operator.objects import Object


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def config_map(name: str, version: int, service: str = "qwen", **data: str) -> Object:
    """As the server sends it in a list: without kind."""
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {"serving.bladellm.io/name": service},
        },
        "data": data,
    }


def llm_service(version: int, generation: int = 1, name: str = "qwen", **status: Any) -> Object:
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "generation": generation,
        },
        "spec": {"replicas": 1},
        "status": status,
    }


class Script:
    """Answers lists and watches in the order they were written down; then it never answers again."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[Mapping[str, str]] = []
        self.finished = asyncio.Event()

    def list(self, version: int, *items: Object, more: str = "") -> None:
        self.answers.append({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)})

    def watch(self, *events: tuple[str, Object] | Exception) -> None:
        self.answers.append(events)

    def fail(self, error: Exception) -> None:
        self.answers.append(error)

    async def _next(self, params: Mapping[str, str]) -> Any:
        if not self.answers:
            self.finished.set()
            await asyncio.Event().wait()
        self.asked.append(params)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def get(self, path: str, params: Mapping[str, str], *, kind: str) -> Any:
        return copy.deepcopy(await self._next(params))

    async def lines(self, path: str, params: Mapping[str, str], *, kind: str) -> AsyncIterator[bytes]:
        for event in await self._next(params):
            if isinstance(event, Exception):
                raise event
            yield msgspec.json.encode({"type": event[0], "object": event[1]})


class LeaseServer:
    """Keeps one Lease as an API server does: a write of an older version is a conflict."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.away = False
        self.writes = 0

    async def get(self, path: str, *, kind: str, timeout: float) -> Any:
        self._answer()
        if self.lease is None:
            raise ApiError(404, "NotFound", "not found")
        return copy.deepcopy(self.lease)

    async def write(self, method: str, path: str, body: Object, *, kind: str, timeout: float, guarded: bool) -> Object:
        self._answer()
        before = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if body["metadata"].get("resourceVersion") != before:
            raise ApiError(409, "Conflict", "the object has been modified")
        self.writes += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.writes)
        return copy.deepcopy(self.lease)

    def _answer(self) -> None:
        if self.away:
            raise ApiError(0, "Unreachable", "no answer from the API server")
