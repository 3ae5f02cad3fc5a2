"""Keeps responses off the event loop: one thread writes and deletes their files, in the order in which they ended.

Whoever ends a response waits until it is written before the last bytes of it go out, so that the next request finds it
whatever process it comes to. Only so many wait at once, and only so long: a disk that hangs costs what would have been
kept, and no answers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.response_store import ResponseStore

MOST_PENDING: Final = 128
"""Responses and deletions that wait for the thread."""
LONGEST_WAIT_S: Final = 5.0
"""How long the end of a response waits to be kept."""
_Result = TypeVar("_Result")
_log: Final = logging.getLogger(__name__)


class ResponseWriter:
    """Changes a :class:`ResponseStore`, in its thread.

    Args:
        store: nobody else changes it from here on.
        failed: called on the event loop for each response that is not kept.
    """

    def __init__(self, store: ResponseStore, failed: Callable[[], None]) -> None:
        self._store = store
        self._failed = failed
        self._thread: ThreadPoolExecutor | None = None
        self._free = threading.BoundedSemaphore(MOST_PENDING)

    async def put(self, name: str, encode: Callable[[], bytes]) -> None:
        """Keep what ``encode`` makes, which is called in the thread. Returns when it is kept, or when it is given up,
        which the log says."""
        try:
            if not await self._do(lambda: self._store.put(name, encode())):
                self._lose(name, "it is larger than --response_store_bytes (divided among the API-server processes)")
        except TimeoutError:
            self._lose(name, f"the disk has not taken it within {LONGEST_WAIT_S:g} s; it may do so yet")
        except (OSError, _BusyError) as error:
            self._lose(name, str(error))

    async def delete(self, name: str) -> None:
        """Keep it no more. Returns when its file is gone, or will be once the disk goes on. Raises :class:`ApiError`
        503 where it stays, as too much waits for the disk."""
        try:
            await self._do(lambda: self._store.delete(name))
        except TimeoutError:
            _log.warning("the response %s is not deleted yet: the disk has not done it in %g s", name, LONGEST_WAIT_S)
        except _BusyError as error:
            message = f"the response {name} is not deleted: {error}; try again shortly"
            raise ApiError(503, message, kind="overloaded_error", code="busy", headers={"retry-after": "1"}) from None

    def close(self) -> None:
        """Let the thread end, with what waits for it undone."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _do(self, work: Callable[[], _Result]) -> _Result:
        """What ``work`` returns in the thread. Raises what it does, :class:`_BusyError`, or ``TimeoutError``."""
        if not self._free.acquire(blocking=False):
            raise _BusyError(f"{MOST_PENDING} others wait for the disk")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "kept-responses")
        future: Future[_Result] = self._thread.submit(work)
        future.add_done_callback(lambda _: self._free.release())
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), LONGEST_WAIT_S)

    def _lose(self, name: str, why: str) -> None:
        _log.warning("the response %s is not kept: %s", name, why)
        self._failed()


class _BusyError(Exception):
    """More waits for the disk than may."""
