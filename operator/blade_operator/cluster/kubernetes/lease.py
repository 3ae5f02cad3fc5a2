"""Leader election: one Lease object, renewed by the leader, taken over when it has not been renewed for its duration.

The clocks of two machines are never compared. A candidate measures, on its own clock, how long the record has stayed as
it is; the leader counts from before it requested the renewal. So the leader's `WriteFence` shuts `MARGIN` seconds
before anyone else can take over, which is longer than a write may take.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import UTC, datetime
from typing import Any

from blade_operator import metrics
from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.fence import Clock, WriteFence, clock
from blade_operator.cluster.kubernetes.lease_object import LeaseObject, stamp
from blade_operator.model.objects import Object

_log = logging.getLogger(__name__)

DURATION = 10
"""Seconds a lease lasts."""
RENEW = 3.0
"""Seconds between renewals."""
MARGIN = 4.0
"""Seconds before its end from which nothing is written any more; longer than `api.WRITE_TIMEOUT`."""
RETRY = 1.0
"""Seconds until a candidate, or a leader whose renewal failed, tries again; with jitter."""


class LeaseLost(Exception):
    """Another process may be the leader now."""


class Lease:
    """This process's part in the election. ``acquire``, then ``hold`` until it ends, then ``release``."""

    def __init__(
        self, api: Api, fence: WriteFence, namespace: str, name: str, identity: str, clock: Clock = clock
    ) -> None:
        self._object = LeaseObject(api, namespace, name)
        self._fence = fence
        self._identity = identity
        self._clock = clock
        self._seen: Any = None
        self._seen_at = 0.0
        self._held: Object | None = None
        """The Lease as this process wrote it last: the next renewal needs no read."""
        self._expires = 0.0
        """When others may take the lease this process holds."""

    async def acquire(self) -> None:
        """Return as the leader."""
        reported = ""
        while not await self._try_take():
            holder = (self._seen or {}).get("holderIdentity", "")
            if holder and holder != reported:
                _log.info("standby: %s is the leader", holder)
                reported = holder
            await asyncio.sleep(self._until_next_try())
        _log.info("%s is the leader", self._identity)
        metrics.LEADER.set(1)

    async def hold(self) -> None:
        """Renew until cancelled.

        Raises:
            LeaseLost: another process has the lease, or it could not be renewed in time.
        """
        wait = RENEW
        while True:
            await asyncio.sleep(min(wait, max(0.0, self._expires - self._clock())))
            if self._clock() >= self._expires:
                raise LeaseLost(f"the lease was not renewed for {DURATION} s")
            if await self._try_take():
                wait = RENEW
            elif self._seen and self._seen.get("holderIdentity") != self._identity:
                raise LeaseLost(f"{self._seen.get('holderIdentity') or 'nobody'} has the lease")
            else:
                wait = RETRY

    async def release(self) -> None:
        """Let another take over at once. No more is written."""
        self._fence.shut()
        metrics.LEADER.set(0)
        if self._clock() >= self._expires:
            return
        try:
            lease = await self._object.read()
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                await self._object.write(lease, lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1})
                _log.info("the lease is free")
        except ApiError as error:
            _log.warning("the lease could not be released: %s", error)

    async def _try_take(self) -> bool:
        """`_take`; False when the server could not be reached."""
        try:
            return await self._take()
        except ApiError as error:
            _log.warning("%s: %s", self._object, error)
            return False

    async def _take(self) -> bool:
        """Take or renew the lease; False when another has it or was faster."""
        started = self._clock()
        lease, self._held = self._held or await self._object.read(), None
        spec = lease["spec"] if lease else {}
        if spec != self._seen:
            self._seen, self._seen_at = spec, self._clock()
        if not self._may_take(spec):
            return False
        mine = spec.get("holderIdentity") == self._identity
        now = stamp(datetime.now(UTC))
        wanted = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION,
            "acquireTime": spec.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (0 if mine or lease is None else 1),
        }
        try:
            written = await self._object.write(lease, wanted)
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        self._held, self._seen, self._seen_at = written, written["spec"], self._clock()
        self._expires = started + DURATION
        self._fence.open(self._expires - MARGIN)
        return True

    def _may_take(self, spec: Object) -> bool:
        holder = spec.get("holderIdentity")
        return not holder or holder == self._identity or self._clock() >= self._free_at()

    def _free_at(self) -> float:
        return self._seen_at + float(self._seen.get("leaseDurationSeconds") or DURATION)

    def _until_next_try(self) -> float:
        usual = RETRY * random.uniform(1.0, 1.3)
        if not self._seen or not self._seen.get("holderIdentity"):
            return usual
        left = self._free_at() - self._clock()
        return min(usual, left + random.uniform(0.01, 0.1)) if left > 0 else usual
