"""The Lease of an operator without leader election: it elects nobody, and shows other installations that it is there.

An installation whose Lease is gone or has long expired loses its services to another one that watches them
(`installations`).
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.lease_object import LeaseObject, stamp
from blade_operator.model.objects import Object

_log = logging.getLogger(__name__)

BEAT = 60.0
"""Seconds between renewals."""
DURATION = 3 * int(BEAT)
"""Seconds a renewal counts for who takes part in an election of that name."""


class Heartbeat:
    """Renews the Lease, unless a process that takes part in an election holds it: then that one shows the same."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str) -> None:
        self._object = LeaseObject(api, namespace, name)
        self._identity = identity

    async def run(self) -> None:
        """Renew until cancelled. A Lease that cannot be written is logged, and tried again."""
        failure = ""
        while True:
            await asyncio.sleep(BEAT)
            failure = await self._try_beat(failure)

    async def start(self) -> None:
        """Renew once, so that nobody takes over what is claimed from now on."""
        await self._try_beat("")

    async def _try_beat(self, failure: str) -> str:
        """`beat`; returns why it failed, which is logged unless it is ``failure``."""
        try:
            await self.beat()
        except ApiError as error:
            if str(error) != failure:
                _log.warning("%s: %s; other installations take this one for gone", self._object, error)
            return str(error)
        return ""

    async def beat(self) -> None:
        """Renew the Lease, or make it.

        Raises:
            ApiError: it can be neither read nor written.
        """
        now = datetime.now(UTC)
        lease = await self._object.read()
        spec: Object = {} if lease is None else lease["spec"]
        if self._is_held(spec, now):
            return
        mine = {"holderIdentity": self._identity, "leaseDurationSeconds": DURATION, "renewTime": stamp(now)}
        try:
            await self._object.write(lease, spec | mine)
        except ApiError as error:
            if error.status != 409:  # somebody else was faster
                raise

    def _is_held(self, spec: Object, now: datetime) -> bool:
        """Whether another process renews it."""
        if spec.get("holderIdentity") in (None, "", self._identity):
            return False
        try:
            age = (now - datetime.fromisoformat(spec["renewTime"])).total_seconds()
            return age < float(spec.get("leaseDurationSeconds") or DURATION) + BEAT
        except (KeyError, TypeError, ValueError):
            return False
