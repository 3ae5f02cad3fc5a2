"""Talks HTTP to engine pods, on their internal ports: how are you, how far is the download, and take nothing new.

An engine that does not answer in time is left out of the result: unknown, not broken. Its pod's probes say whether it
lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TypeVar

import httpx
import msgspec

from blade_operator import pods as read
from blade_operator.objects import Object
from blade_protocol import headers, paths
from blade_protocol.fetch import FetchProgress
from blade_protocol.labels import ROLE_ENGINE
from blade_protocol.state import DrainRequest, EngineState

T = TypeVar("T")

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
        wait = httpx.Timeout(timeout, pool=5 * timeout)  # with very many engines a question waits for its turn
        self._client = httpx.AsyncClient(timeout=wait, limits=limits, trust_env=False)

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def ask(self, pods: Iterable[Object]) -> tuple[Mapping[str, EngineState], Mapping[str, FetchProgress]]:
        """What each engine, and each download, that answers says of itself, by pod name. Asks all at once."""
        found = tuple(pods)
        engines, downloads = await asyncio.gather(
            self._ask(found, engine_url, paths.INTERNAL_STATE, EngineState),
            self._ask(found, fetch_url, paths.INTERNAL_FETCH, FetchProgress),
        )
        return engines, downloads

    async def drain(self, pod: Object) -> bool:
        """Ask the engine in ``pod`` to take nothing new; False when it did not answer. Idempotent."""
        url = engine_url(pod)
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

    async def _ask(
        self, pods: Iterable[Object], url: Callable[[Object], str | None], path: str, kind: type[T]
    ) -> dict[str, T]:
        asked = [(pod, f"{there}{path}") for pod in pods if (there := url(pod)) is not None]
        answers = await asyncio.gather(*(self._get(pod, there, kind) for pod, there in asked))
        return {pod["metadata"]["name"]: answer for (pod, _), answer in zip(asked, answers, strict=True) if answer}

    async def _get(self, pod: Object, url: str, kind: type[T]) -> T | None:
        try:
            answer = await self._client.get(url, headers=self._headers(pod))
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=kind)
        except (httpx.HTTPError, msgspec.DecodeError):
            return None

    def _headers(self, pod: Object) -> dict[str, str]:
        token = self._token(pod) if self._token else None
        return {headers.INTERNAL_TOKEN: token} if token else {}


def engine_url(pod: Object) -> str | None:
    """The internal port of an engine pod whose engine has started, or None."""
    started = any(entry.get("started") for entry in pod.get("status", {}).get("containerStatuses") or ())
    return _internal_port(pod) if started else None


def fetch_url(pod: Object) -> str | None:
    """The same port of a pod that still downloads its model, or None."""
    fetch = read.container(pod, read.FETCH)
    return _internal_port(pod) if fetch is not None and fetch.running else None


def _internal_port(pod: Object) -> str | None:
    address = pod.get("status", {}).get("podIP")
    if read.role(pod) != ROLE_ENGINE or not address:
        return None
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == "internal":
                return f"http://{f'[{address}]' if ':' in address else address}:{port['containerPort']}"
    return None
