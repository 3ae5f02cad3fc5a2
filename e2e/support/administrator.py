"""The API server without kubectl, for tests and benchmarks that send thousands of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from blade_operator.cluster.kubernetes.api import MERGE, Api, ApiError, load_configuration
from blade_operator.cluster.kubernetes.fence import WriteFence
from blade_operator.cluster.kubernetes.kinds import SECRET, SERVICE, WATCHED, Kind
from blade_operator.model.objects import Object
from blade_protocol.labels import MANAGED_BY, MANAGER
from e2e.cluster.base import Cluster

PATIENCE = 30.0
"""Seconds a write may take: the machine may be busy with a thousand pods."""
NOT_FOUND = 404
CHILDREN = (*(kind for kind in WATCHED if kind is not SERVICE), SECRET)
"""Every kind of object an LLMService has."""


class Administrator:
    """Requests of the cluster's administrator; raises `ApiError`."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def service(self, namespace: str, name: str) -> Object:
        """One LLMService."""
        found: Object = await self.api.get(SERVICE.path(namespace, name), kind=SERVICE.name)
        return found

    async def create(self, service: Object) -> Object:
        """Make an LLMService; as the server stored it."""
        path = SERVICE.path(service["metadata"]["namespace"])
        return await self.api.write("POST", path, service, kind=SERVICE.name, timeout=PATIENCE)

    async def edit(self, namespace: str, name: str, spec: Object) -> Object:
        """Merge ``spec`` into that of an LLMService; as the server stored it."""
        body = {"spec": spec}
        path = SERVICE.path(namespace, name)
        return await self.api.write("PATCH", path, body, kind=SERVICE.name, content_type=MERGE, timeout=PATIENCE)

    async def scale(self, namespace: str, name: str, replicas: int) -> None:
        """What ``kubectl scale`` does."""
        body = {"spec": {"replicas": replicas}}
        path = f"{SERVICE.path(namespace, name)}/scale"
        await self.api.write("PATCH", path, body, kind=SERVICE.name, content_type=MERGE, timeout=PATIENCE)

    async def delete(self, namespace: str, name: str) -> None:
        """What ``kubectl delete --wait=false`` does."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        await self.api.write("DELETE", SERVICE.path(namespace, name), body, kind=SERVICE.name, timeout=PATIENCE)

    async def services(self, namespace: str | None = None) -> list[Object]:
        """All LLMServices of a namespace, or of the cluster."""
        return await self.find(SERVICE, namespace)

    async def children(self, namespace: str | None = None) -> list[Object]:
        """All objects that the operator made, and what pods came of them."""
        return [obj for kind in CHILDREN for obj in await self.find(kind, namespace, f"{MANAGED_BY}={MANAGER}")]

    async def find(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        """Objects of one kind, each with its kind; none of a foreign kind that the cluster does not have."""
        params = {"labelSelector": selector} if selector else {}
        try:
            found = await self.api.get(kind.path(namespace), params, kind=kind.name)
        except ApiError as error:
            if kind.foreign and error.status == NOT_FOUND:
                return []
            raise
        return [{**obj, "kind": kind.name, "apiVersion": kind.api_version} for obj in found["items"]]


@asynccontextmanager
async def administrator(cluster: Cluster) -> AsyncIterator[Administrator]:
    """Connections of the cluster's administrator, to be used inside its network."""
    fence = WriteFence()
    fence.open()
    async with Api(await load_configuration(str(cluster.kubeconfig)), fence) as api:
        yield Administrator(api)
