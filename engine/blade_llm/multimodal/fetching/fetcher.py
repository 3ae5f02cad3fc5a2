"""All kinds of URLs to bytes, for many requests at once."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import httpcore
import httpx

from blade_llm.multimodal.fetching.allowance import Allowance, HeldBytes
from blade_llm.multimodal.fetching.connecting import Connector
from blade_llm.multimodal.fetching.data_urls import decode_data_url
from blade_llm.multimodal.fetching.errors import MediaError
from blade_llm.multimodal.fetching.http_client import HttpClient
from blade_llm.multimodal.fetching.local_files import read_file_url
from blade_llm.multimodal.fetching.options import FetchOptions
from blade_llm.multimodal.fetching.resolver import Resolver, SystemResolver

_INLINE: Final = 1 << 16
"""Characters of a ``data:`` URL that are decoded on the event loop; of longer ones a thread does it."""
_DECODERS: Final = 1
"""Decoding holds the interpreter's lock, so that two threads would be no faster."""
_READERS: Final = 4

_log: Final = logging.getLogger(__name__)


class Fetcher:
    """Fetches the images and videos of requests in an API-server process; its bounds hold for all of them together.

    Nothing is cached across requests: a URL's content may change, and what one tenant may fetch (by a signed URL) is
    not another's. What is costly afterwards, the embeddings, is cached by content. Use on one event loop; ``resolver``,
    ``tls`` and ``backend`` are for tests and unusual networks.
    """

    def __init__(
        self,
        options: FetchOptions,
        *,
        resolver: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
        backend: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self.options = options
        # Twice: lookups that were given up leave threads to those that come next.
        self._resolver = resolver or SystemResolver(2 * options.max_concurrency)
        # httpx' context: certifi's authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR.
        connector = Connector(
            options, self._resolver, tls or httpx.create_ssl_context(), backend or httpcore.AnyIOBackend()
        )
        self._client = HttpClient(options, connector)
        self._connections = asyncio.Semaphore(options.max_concurrency)
        self._held = HeldBytes(options.max_held_bytes)
        # Apart, because a network file system may leave readers waiting.
        self._decoders = ThreadPoolExecutor(_DECODERS, thread_name_prefix="media-decode")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="media-read")

    async def fetch(self, url: str) -> bytes:
        """The bytes behind one URL, at least one. Raises MediaError."""
        return (await self.fetch_all([url]))[0]

    async def fetch_all(self, urls: Sequence[str]) -> list[bytes]:
        """The bytes behind each URL of one request; what is there twice is fetched once.

        Raises MediaError, with ``index``, for the first that fails; the others are then cancelled, as all are when the
        caller is, and their connections closed.
        """
        options = self.options
        if len(urls) > options.max_request_urls:
            reason = f"{len(urls)} images and videos in one request; at most {options.max_request_urls} are allowed"
            raise MediaError("invalid", reason)
        results: list[bytes] = [b""] * len(urls)
        jobs = iter(_distinct(urls))
        with Allowance(self._held, options.max_request_bytes) as allowance:
            failed: BaseException
            try:
                async with asyncio.timeout(options.request_timeout_s), asyncio.TaskGroup() as group:
                    for _ in range(min(options.max_request_concurrency, len(urls))):
                        group.create_task(self._work(jobs, allowance, results))
                return results
            except TimeoutError:
                reason = f"the images and videos of this request took longer than {options.request_timeout_s:g} s"
                failed = MediaError("timeout", reason)
            except BaseExceptionGroup as errors:
                failed = errors.exceptions[0]
        if isinstance(failed, MediaError) and failed.detail:
            _log.info("%s [%s]", failed, failed.detail)
        raise failed

    async def aclose(self) -> None:
        """Give up the threads. Fetches that still run are the caller's to cancel first."""
        self._resolver.close()
        for threads in (self._decoders, self._readers):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self, jobs: Iterator[tuple[str, list[int]]], allowance: Allowance, results: list[bytes]) -> None:
        for url, places in jobs:
            try:
                data = await self._fetch(url, allowance)
            except MediaError as error:
                error.index = places[0]
                raise
            for place in places:
                results[place] = data

    async def _fetch(self, url: str, allowance: Allowance) -> bytes:
        options = self.options
        match url[:6].partition(":")[0].lower():
            case "data":
                decode = partial(decode_data_url, url, options.max_bytes)
                data = decode() if len(url) <= _INLINE else await self._in_thread(self._decoders, decode)
                allowance.take(len(data), url)
                return data
            case "file":
                read = partial(read_file_url, url, options.allowed_local_media_path, options.max_bytes)
                data = await self._within_deadline(url, self._in_thread(self._readers, read))
                allowance.take(len(data), url)
                return data
        async with self._connections:
            return await self._within_deadline(url, self._client.get(url, allowance))

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], bytes]) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    async def _within_deadline(self, url: str, fetching: Coroutine[Any, Any, bytes]) -> bytes:
        try:
            async with asyncio.timeout(self.options.timeout_s):
                return await fetching
        except TimeoutError:
            raise MediaError("timeout", f"it is not there after {self.options.timeout_s:g} s", url) from None


def _distinct(urls: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Each URL with its places. ``data:`` URLs are each their own: to hash one of many megabytes takes as long as to
    decode it, and that on the event loop."""
    jobs: list[tuple[str, list[int]]] = []
    known: dict[str, list[int]] = {}
    for index, url in enumerate(urls):
        if url[:5].lower() == "data:":
            jobs.append((url, [index]))
        elif url in known:
            known[url].append(index)
        else:
            known[url] = [index]
            jobs.append((url, known[url]))
    return jobs
