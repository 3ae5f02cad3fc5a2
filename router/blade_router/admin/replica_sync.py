"""Router replica sync, in each process of a router: batches of events go to all others every few tens of milliseconds.

To other replicas over their internal routes, on connections that stay open; there one worker gets the message and
passes it on. Between the workers of one router as datagrams. What a sibling does not take in time is dropped: it sees
the gap in the sequence. With nobody to send to nothing is collected, and one looks for silent siblings now and then.
"""

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from blade_protocol import paths
from blade_router.admin.access import require_token
from blade_router.admin.replica_links import ReplicaLink, WorkerLink
from blade_router.config.internal_token import token_file
from blade_router.config.token_header import TokenHeader
from blade_router.policies.replica_sync import messages
from blade_router.policies.replica_sync.outgoing import Outgoing
from blade_router.policies.replica_sync.siblings import MAX_SIBLINGS, Siblings
from blade_router.workers.supervisor import Worker

INTERVAL = 0.03
"""Seconds between two batches."""
HEARTBEAT = 0.25
"""Seconds after which an empty one is sent."""
IDLE_SECONDS = 1.0
"""Seconds between two looks for silent siblings, while there is nobody to send to."""


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
        self._outgoing = Outgoing(self._log, self._id, self.router)
        self._dropped = 0
        """Batches of links that are closed."""

    @property
    def dropped(self) -> int:
        """Events that found no room, and batches that a sibling did not take."""
        workers = self._workers.dropped if self._workers is not None else 0
        links = self._dropped + workers + sum(link.dropped for link in self._replicas.values())
        return links + self._log.dropped + self._outgoing.dropped

    def counts(self) -> tuple[dict[str, int], int]:
        """Events by what became of them, and the siblings whose events arrive."""
        siblings = self.siblings
        events = {
            "sent": self._outgoing.sent,
            "received": siblings.received,
            "ignored": siblings.ignored + self.malformed,
        }
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
                        async with asyncio.timeout(IDLE_SECONDS):
                            await self._members_changed.wait()
                    continue
                if not self._log.active:
                    self._log.active = self._log.lost = True
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
            if not self._log.events and now - sent_at < HEARTBEAT:
                continue
            sent_at = now
            message = messages.encode_batch(self._outgoing.batch(now))
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
