"""Names and public addresses that lead to local servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpcore


class ScriptedResolver:
    """Resolves each name to what is written for it, in turn where it is a list of lists; the last goes on."""

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._names = {name: list(answers) for name, answers in names.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        await asyncio.sleep(0)
        answers = self._names.get(host)
        if answers is None:
            raise OSError("no such name")
        return list(answers.pop(0) if len(answers) > 1 else answers[0])

    def close(self) -> None:
        """There is nothing to give up."""


class Rerouted(httpcore.AsyncNetworkBackend):
    """Connects to local ports in place of (address, port) pairs, over real sockets; refuses all others."""

    def __init__(self, routes: Mapping[tuple[str, int], int]) -> None:
        self._routes = routes
        self._backend = httpcore.AnyIOBackend()
        self.connected: list[tuple[str, int]] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.connected.append((host, port))
        local = self._routes.get((host, port))
        if local is None:
            raise httpcore.ConnectError("refused")
        return await self._backend.connect_tcp("127.0.0.1", local, timeout)
