"""Talks HTTP to engines, on their internal ports: how are you, and take nothing new.

An engine that does not answer in time is left out of the result: unknown, not broken. Its pod's probes say whether it
lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

import httpx
import msgspec

from blade_operator.objects import Object
from blade_protocol import headers, paths
from blade_protocol.labels import ROLE, ROLE_ENGINE
from blade_protocol.state import DrainRequest, EngineState

TIMEOUT = 1.0
"""Seconds for one question."""
AT_ONCE = 64
"""Questions asked at the same time."""


class Fleet:
    """An HTTP client for engines. Use it as an async context manager.

    ``token`` gives the secret that opens the internal port of a pod, or None where there is none.
    """

    def __init__(self, timeout: float = TIMEOUT, token: Callable[[Object], str | None] | None = None) -> None:
        self._token = token
        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def states(self, pods: Iterable[Object]) -> Mapping[str, EngineState]:
        """What each engine pod that answers says of itself, by pod name. Asks all at once."""
        asked = [(pod, url) for pod in pods if (url := internal_url(pod)) is not None]
        answers = await asyncio.gather(*(self._state(pod, url) for pod, url in asked))
        return {pod["metadata"]["name"]: state for (pod, _), state in zip(asked, answers, strict=True) if state}

    async def drain(self, pod: Object) -> bool:
        """Ask the engine in ``pod`` to take nothing new; False when it did not answer. Idempotent."""
        url = internal_url(pod)
        if url is None:
            return False
        try:
            answer = await self._client.post(
                f"{url}{paths.INTERNAL_DRAIN}",
                content=msgspec.json.encode(DrainRequest()),
                headers={"content-type": "application/json", **self._headers(pod)},
            )
        except httpx.HTTPError:
            return False
        return answer.is_success

    async def _state(self, pod: Object, url: str) -> EngineState | None:
        try:
            answer = await self._client.get(f"{url}{paths.INTERNAL_STATE}", headers=self._headers(pod))
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=EngineState)
        except (httpx.HTTPError, msgspec.DecodeError):
            return None

    def _headers(self, pod: Object) -> dict[str, str]:
        token = self._token(pod) if self._token else None
        return {headers.INTERNAL_TOKEN: token} if token else {}


def internal_url(pod: Object) -> str | None:
    """The internal port of an engine pod whose engine has started, or None."""
    if (pod["metadata"].get("labels") or {}).get(ROLE) != ROLE_ENGINE:
        return None
    status = pod.get("status", {})
    if not status.get("podIP") or not any(entry.get("started") for entry in status.get("containerStatuses", [])):
        return None
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", []):
            if port.get("name") == "internal":
                return f"http://{status['podIP']}:{port['containerPort']}"
    return None
