"""``http:`` and ``https:`` URLs to bytes, over HTTP/1.1."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from io import BytesIO
from typing import Final, cast

import httpcore
import httpx

from blade_llm.multimodal.fetching.allowance import Allowance
from blade_llm.multimodal.fetching.connecting import Connector, Target, check_url
from blade_llm.multimodal.fetching.errors import MediaError, too_large
from blade_llm.multimodal.fetching.metered import MeteredStream
from blade_llm.multimodal.fetching.options import FetchOptions

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_FREE_CHUNKS: Final = 1000
_MIN_CHUNK: Final = 256
"""A body in chunks (RFC 9112) shorter than this many bytes on average is refused, after the first so many chunks."""
_CHUNKS_AT_ONCE: Final = 16
"""Chunks after which other tasks have a turn: a chunk of one byte takes as long to parse as one of many."""
_BROKEN: Final = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError)

# Its debug messages hold the headers of responses, in which a redirect's URL can hold a signature.
logging.getLogger("httpcore.http11").setLevel(logging.INFO)


class HttpClient:
    """GET, one connection each: nothing of one tenant's fetch, not even a connection, is there in another's, and every
    fetch checks the addresses anew. No cookies, no proxies, no compression, no credentials."""

    def __init__(self, options: FetchOptions, connector: Connector) -> None:
        self._options = options
        self._connector = connector

    async def get(self, url: str, allowance: Allowance) -> bytes:
        """Raises MediaError: every redirect is checked as ``url`` is. It has no deadline of its own."""
        target = check_url(url, self._options)
        for hop in range(self._options.max_redirects + 1):
            try:
                result = await self._get(target, allowance)
                if isinstance(result, bytes):
                    return result
                target = self._redirected(target, result)
            except MediaError as error:
                if hop == 0:
                    raise
                raise MediaError(error.kind, f"redirected, and then {error}", url, detail=error.detail) from None
        raise MediaError("unavailable", f"more than {self._options.max_redirects} redirects; give the final URL", url)

    def _redirected(self, source: Target, location: str) -> Target:
        try:
            url = str(httpx.URL(source.url).join(location).copy_with(fragment=None))
        except (httpx.InvalidURL, ValueError):
            raise MediaError("unavailable", "its server redirects to what is no URL", source.url) from None
        try:
            target = check_url(url, self._options)
            if (source.scheme, target.scheme) == ("https", "http"):
                raise MediaError("refused", "give an https: URL that does not lead to http:", url)
        except MediaError as error:
            raise MediaError(error.kind, f"redirects to {error}", source.url) from None
        return target

    async def _get(self, target: Target, allowance: Allowance) -> bytes | str:
        """The body, or where it is instead."""
        stream = MeteredStream(await self._connector.connect(target), target.url)
        try:
            url = httpcore.URL(
                scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path
            )
            headers = {
                "Host": target.authority,
                "User-Agent": self._options.user_agent,
                "Accept": "*/*",
                "Accept-Encoding": "identity",
                "Connection": "close",
            }
            connection = httpcore.AsyncHTTP11Connection(origin=url.origin, stream=stream)
            response = await connection.handle_async_request(
                httpcore.Request("GET", url, headers=list(headers.items()))
            )
            stream.begin_body()
            return await self._read(response, target, allowance)
        except _BROKEN:
            raise MediaError("unavailable", "its server breaks off, or does not speak HTTP/1.1", target.url) from None
        finally:
            await stream.aclose()

    async def _read(self, response: httpcore.Response, target: Target, allowance: Allowance) -> bytes | str:
        headers = {name.lower(): value for name, value in response.headers}
        status = response.status
        if status in _REDIRECTS and b"location" in headers:
            return headers[b"location"].decode("utf-8", "replace")
        if status != 200:
            reason = f"its server answers with status {status}; give a URL that can be fetched without credentials"
            raise MediaError("unavailable", reason, target.url)
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"", b"identity"):
            reason = "its server sends it compressed, unasked (Content-Encoding); give a URL of the file as it is"
            raise MediaError("refused", reason, target.url)
        limit = self._options.max_bytes
        length = headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > limit):
            raise too_large(target.url, limit)
        data = BytesIO()
        count = 0
        async with contextlib.aclosing(cast(AsyncGenerator[bytes, None], response.aiter_stream())) as chunks:
            async for chunk in chunks:
                count += 1
                if count % _CHUNKS_AT_ONCE == 0:
                    if count > _FREE_CHUNKS + data.tell() // _MIN_CHUNK:
                        reason = "its server sends it in pieces of a few bytes; give a URL on another server"
                        raise MediaError("unavailable", reason, target.url)
                    await asyncio.sleep(0)
                if data.tell() + len(chunk) > limit:
                    raise too_large(target.url, limit)
                allowance.take(len(chunk), target.url)
                data.write(chunk)
        if not data.tell():
            raise MediaError("unavailable", "its server sends an empty body", target.url)
        return data.getvalue()  # without a copy
