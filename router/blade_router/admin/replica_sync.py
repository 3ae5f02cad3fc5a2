"""Router replica sync, in each process of a router: batches of events go to all others every few tens of milliseconds.

To other replicas over their internal routes, on connections that stay open; there one worker gets the message and
passes it on. Between the workers of one router as datagrams. What a sibling does not take in time is dropped: it sees
the gap in the sequence. With nobody to send to nothing is collected, and nothing runs.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from blade_protocol import paths
from blade_router.admin.access import require_token
from blade_router.config.internal_token import token_file
from blade_router.config.token_header import TokenHeader
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import BadResponse, UpstreamError
from blade_router.http.upstream.get import read_body
from blade_router.http.upstream.pool import ConnectionPool
from blade_router.policies.replica_sync import messages
from blade_router.policies.replica_sync.siblings import MAX_SIBLINGS, Siblings
from blade_router.workers.supervisor import Worker

logger = logging.getLogger("blade_router.replica_sync")

INTERVAL = 0.03
"""Seconds between two batches."""
HEARTBEAT = 0.25
"""Seconds after which an empty one is sent."""
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


class ReplicaSync:
    """One process's part.

    Args:
        siblings: what is known of the others, with the log of this process's own events.
        place: this worker's; None: the router is one process.
        clock: that of the log.
    """

    def __init__(
        self,
        siblings: Siblings,
        token: TokenHeader,
        place: Worker | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.siblings = siblings
        self.sent = 0
        """Events."""
        self.malformed = 0
        """Messages."""
        self._log = siblings.log
        self._token = token
        self._place = place
        self._clock = clock
        self._id = secrets.token_hex(8)
        self.router = hashlib.sha256(str(place.folder).encode()).hexdigest()[:16] if place is not None else self._id
        self._replicas: dict[str, ReplicaLink] = {}
        self._workers: WorkerLink | None = None
        self._members_changed = asyncio.Event()
        self._sequence = 0
        self._dropped = 0
        """Events, and batches of links that are closed."""

    @property
    def dropped(self) -> int:
        """Events that found no room, and batches that a sibling did not take."""
        workers = self._workers.dropped if self._workers is not None else 0
        return self._dropped + self._log.dropped + workers + sum(link.dropped for link in self._replicas.values())

    def counts(self) -> tuple[dict[str, int], int]:
        """Events by what became of them, and the siblings whose events arrive."""
        siblings = self.siblings
        events = {"sent": self.sent, "received": siblings.received, "ignored": siblings.ignored + self.malformed}
        return events | {"dropped": self.dropped}, self._log.synced

    def set_members(self, urls: Sequence[str]) -> None:
        """Take over the base URLs of the replicas' internal routes, this one's among them or not."""
        wanted = set(urls) if 1 < len(urls) <= MAX_SIBLINGS else set()
        for url in self._replicas.keys() - wanted:
            link = self._replicas.pop(url)
            self._dropped += link.dropped
            link.close()
        for url in wanted - self._replicas.keys():
            self._replicas[url] = ReplicaLink(url, self.router, self._token)
        self._members_changed.set()

    async def follow(self) -> None:
        """Send batches, until cancelled."""
        if self._place is not None and self._workers is None:
            self._workers = WorkerLink(self._place, self._from_worker)
        try:
            while True:
                if not self._replicas and self._workers is None:
                    self._log.active = False
                    self._members_changed.clear()
                    self.siblings.expire()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(RETRY_SECONDS if self._log.synced else None):
                            await self._members_changed.wait()
                    continue
                self._log.active = True
                await self._exchange()
        finally:
            self._log.active = False
            if self._workers is not None:
                self._workers.close()
                self._workers = None

    async def _exchange(self) -> None:
        """Send a batch each interval, as long as there is somebody to send it to."""
        sent_at = 0.0
        while self._replicas or self._workers is not None:
            await asyncio.sleep(INTERVAL)
            now = self._clock()
            self.siblings.expire()
            events = self._log.take()
            if not events and now - sent_at < HEARTBEAT:
                continue
            sent_at = now
            packed, left_out = messages.pack(events, now)
            self._dropped += left_out
            self.sent += len(packed)
            self._sequence += 1
            message = messages.encode_batch(
                messages.Batch(messages.VERSION, self._id, self.router, messages.SALT, self._sequence, packed)
            )
            for link in self._replicas.values():
                link.offer(message)
            if self._workers is not None:
                self._workers.offer(message)

    def received(self, message: bytes) -> None:
        """Take over a message of another replica.

        Raises:
            ValueError: it is none.
        """
        batch = self._decode(message)
        if batch.router == self.router:
            return
        self.siblings.apply(batch)
        if self._workers is not None:
            self._workers.offer(message)

    def _from_worker(self, message: bytes) -> None:
        with contextlib.suppress(ValueError):
            batch = self._decode(message)
            if batch.sender != self._id:
                self.siblings.apply(batch)

    def _decode(self, message: bytes) -> messages.Batch:
        try:
            return messages.decode_batch(message)
        except ValueError:
            self.malformed += 1
            raise


def add_sync_route(app: FastAPI, sync: ReplicaSync) -> None:
    """Add ``POST /internal/replica_sync``, for those with the internal token."""
    secret = token_file()

    @app.post(paths.INTERNAL_REPLICA_SYNC)
    async def replica_sync(request: Request) -> Response:
        require_token(request, secret)
        message = await request.body()
        if len(message) > messages.MAX_BYTES:
            raise HTTPException(413, f"a message has at most {messages.MAX_BYTES} bytes")
        try:
            sync.received(message)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        return Response(sync.router, media_type="text/plain")
