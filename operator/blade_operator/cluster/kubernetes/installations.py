"""Whether another installation of the operator still exists, from its Lease."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.lease_object import LeaseObject

GONE_AFTER = 900.0
"""Seconds since the last renewal of its Lease after which an installation counts as gone: longer than an outage of its
node or an upgrade, and than clocks of two machines differ."""
REMEMBERED = 60.0
"""Seconds for which a finding is kept: the Lease is read for each installation, not for each service."""


class Installations:
    """Reads the Leases of other installations, each at most once a minute."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._found: dict[str, tuple[float, bool]] = {}
        """When each was read, and whether it was gone."""

    async def is_gone(self, installation: str) -> bool:
        """Whether its Lease has not been renewed for `GONE_AFTER`, or does not exist; False when it cannot be read."""
        found = self._found.get(installation)
        if found is None or self._clock() - found[0] > REMEMBERED:
            found = (self._clock(), await self._read(installation))
            self._found[installation] = found
        return found[1]

    async def _read(self, installation: str) -> bool:
        namespace, _, name = installation.partition("/")
        if not namespace or not name:
            return False
        try:
            lease = await LeaseObject(self._api, namespace, name).read()
            if lease is None:
                return True
            renewed = datetime.fromisoformat(lease["spec"]["renewTime"])
        except (ApiError, KeyError, TypeError, ValueError):
            return False
        return (datetime.now(UTC) - renewed).total_seconds() > GONE_AFTER
