"""A connection of which little is read until the head of a response is there.

Parsing goes on without a pause for as long as what was read lasts, and that is in the event loop that streams other
requests' tokens: thousands of tiny headers or informational responses must not be read at once.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

import httpcore

from blade_llm.multimodal.fetching.errors import MediaError

MAX_HEAD: Final = 32 << 10
"""Bytes of a response's head, informational responses before it included."""
_HEAD_READ: Final = 1 << 10


class MeteredStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, url: str) -> None:
        self._stream = stream
        self._url = url
        self._head = 0
        self._in_body = False

    def begin_body(self) -> None:
        self._in_body = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._in_body:
            return await self._stream.read(max_bytes, timeout)
        if self._head >= MAX_HEAD:
            raise MediaError(
                "unavailable", f"the head of its server's response has more than {MAX_HEAD} bytes", self._url
            )
        data = await self._stream.read(min(max_bytes, _HEAD_READ), timeout)
        self._head += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return await self._stream.start_tls(ssl_context, server_hostname, timeout)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
