"""The ways from one process of a router to its siblings: a connection to each replica, datagrams between workers.

What a sibling does not take in time is dropped and counted: it sees the gap in the sequence.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from blade_protocol import paths
from blade_router.config.token_header import TokenHeader
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import BadResponse, UpstreamError
from blade_router.http.upstream.get import read_body
from blade_router.http.upstream.pool import ConnectionPool
from blade_router.policies.replica_sync import messages
from blade_router.workers.supervisor import Worker

logger = logging.getLogger("blade_router.replica_sync")

RESPONSE_SECONDS = 0.5
BACKLOG = 8
"""Batches that wait for a replica which is slow to take them; the oldest are dropped."""
RETRY_SECONDS = 1.0
OWN_SECONDS = 10.0
"""Seconds for which nothing is sent to an address that turned out to be this router's own."""
MAX_REPLY_BYTES = 256


class ReplicaLink:
    """The way to one other replica, or to this one itself: all addresses look alike.

    Args:
        router: this router's id.
    """

    def __init__(self, url: str, router: str, token: TokenHeader) -> None:
        parts = urlsplit(url)
        self.dropped = 0
        """Batches."""
        self._url = url
        self._router = router.encode()
        self._token = token
        self._authority = parts.netloc.encode("latin-1")
        self._pool = ConnectionPool(parts.hostname or "", parts.port or 80, connect_timeout=RESPONSE_SECONDS)
        self._backlog: deque[bytes] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._paused_until = 0.0
        self._responds = True

    def offer(self, message: bytes) -> None:
        """Send a message when those before it are taken."""
        if time.monotonic() < self._paused_until:
            return
        if len(self._backlog) >= BACKLOG:
            self._backlog.popleft()
            self.dropped += 1
        self._backlog.append(message)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name=f"replica sync with {self._url}")

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        self._pool.close()

    async def _send(self) -> None:
        try:
            while self._backlog:
                if await self._post(self._backlog.popleft()) == self._router:
                    self._pause(OWN_SECONDS)
                self._responds = True
        except (UpstreamError, OSError) as error:
            if self._responds:
                logger.warning("router replica %s takes no sync messages: %s", self._url, error)
            self._responds = False
            self.dropped += 1
            self._pause(RETRY_SECONDS)
        finally:
            self._sending = None

    def _pause(self, seconds: float) -> None:
        self._backlog.clear()
        self._paused_until = time.monotonic() + seconds

    async def _post(self, message: bytes) -> bytes:
        """The id of the router that took the message."""
        head = b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/msgpack\r\ncontent-length: %d\r\n%b\r\n"
        head %= (paths.INTERNAL_REPLICA_SYNC.encode(), self._authority, len(message), self._token.lines())
        connection: Connection | None = None
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                connection = await self._pool.exchange(head, message, lambda connection: None)
                content = await read_body(connection, MAX_REPLY_BYTES)
        except TimeoutError:
            raise BadResponse(f"no response within {RESPONSE_SECONDS:g} s") from None
        finally:
            if connection is not None:
                self._pool.release(connection)
        if connection.status != 200:
            raise BadResponse(f"{paths.INTERNAL_REPLICA_SYNC}: status {connection.status}")
        return content


class WorkerLink:
    """The way to and from the other workers of this router: a datagram for each batch.

    Args:
        received: gets each message.
    """

    def __init__(self, worker: Worker, received: Callable[[bytes], None]) -> None:
        self.dropped = 0
        self._folder = worker.folder
        self._own = worker.folder / f"{worker.index}.sync"
        self._received = received
        self._own.unlink(missing_ok=True)  # its predecessor's
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self._own))
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def offer(self, message: bytes) -> None:
        for path in self._others():
            try:
                self._socket.sendto(message, str(path))
            except OSError:  # it is being replaced, or does not keep up
                self.dropped += 1

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _others(self) -> list[Path]:
        return [path for path in self._folder.glob("*.sync") if path != self._own]

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._received(self._socket.recv(messages.MAX_BYTES))
