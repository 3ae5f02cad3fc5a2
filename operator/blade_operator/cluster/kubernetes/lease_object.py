"""One Lease as the API server has it: read, made, and replaced where it is still the one that was read."""

from __future__ import annotations

from datetime import datetime

from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.kinds import LEASE
from blade_operator.model.objects import Object

TIMEOUT = 3.0
"""Seconds for one request: two renewals fit into what is left of the leader's lease."""


class LeaseObject:
    """The Lease of that name."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self._api = api

    def __str__(self) -> str:
        return f"lease {self.namespace}/{self.name}"

    async def read(self) -> Object | None:
        """The Lease; None when there is none.

        Raises:
            ApiError: it cannot be read.
        """
        try:
            lease: Object = await self._api.get(self._path, kind=LEASE.name, timeout=TIMEOUT)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return lease

    async def write(self, lease: Object | None, spec: Object) -> Object:
        """Create the Lease, or replace the very one that was read.

        Raises:
            ApiError: it cannot be written; 409: somebody else was faster.
        """
        if lease is None:
            metadata = {"name": self.name, "namespace": self.namespace}
            lease = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata}
            method, path = "POST", LEASE.path(self.namespace)
        else:
            method, path = "PUT", self._path
        body = {**lease, "spec": spec}
        return await self._api.write(method, path, body, kind=LEASE.name, timeout=TIMEOUT, guarded=False)

    @property
    def _path(self) -> str:
        return LEASE.path(self.namespace, self.name)


def stamp(now: datetime) -> str:
    """``acquireTime`` or ``renewTime`` of that moment, which is in UTC."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
