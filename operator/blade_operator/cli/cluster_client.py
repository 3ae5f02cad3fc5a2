"""Commands on a Kubernetes cluster, with the rights of a kubeconfig."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeVar

from kubernetes.aio.config import ConfigException

from blade_operator.cli.errors import Changed, CommandError
from blade_operator.cluster.kubernetes.api import Api, ApiError, load_configuration
from blade_operator.cluster.kubernetes.fence import WriteFence
from blade_operator.cluster.kubernetes.kinds import JOB, KINDS
from blade_operator.model.objects import Object
from blade_protocol.labels import KIND, NAME

T = TypeVar("T")
FIELD_MANAGER = "blade_operator"
"""Who a cluster says has set the fields that a command changes."""


class ClusterClient:
    """A Kubernetes cluster: that of a kubeconfig, or of where kubectl looks for one; ``context``: which one in it."""

    def __init__(self, kubeconfig: str | None, context: str | None = None) -> None:
        self._kubeconfig = os.path.expanduser(kubeconfig) if kubeconfig else None
        self._context = context

    def service(self, namespace: str, name: str) -> Object:
        """See `clients.Client`."""
        return self._run(lambda api: api.get(KINDS[KIND].path(namespace, name), kind=KIND))

    def revisions(self, namespace: str, name: str) -> list[Object]:
        """See `clients.Client`."""
        kind = KINDS["ControllerRevision"]
        params = {"labelSelector": f"{kind.selector},{NAME}={name}"}
        listed = self._run(lambda api: api.get(kind.path(namespace), params, kind=kind.name))
        return list(listed["items"])

    def replace(self, service: Object) -> None:
        """See `clients.Client`."""
        path = KINDS[KIND].path(service["metadata"]["namespace"], service["metadata"]["name"])
        params = {"fieldManager": FIELD_MANAGER}

        async def write(api: Api) -> None:
            try:
                await api.write("PUT", path, service, kind=KIND, params=params, timeout=30.0, guarded=False)
            except ApiError as error:
                if error.status == HTTPStatus.CONFLICT:
                    raise Changed(str(error)) from error
                raise

        self._run(write)

    def create_job(self, job: Object) -> None:
        """Create a Job. Raises `CommandError` when there is one of its name."""
        path = JOB.path(job["metadata"]["namespace"])
        params = {"fieldManager": FIELD_MANAGER}
        self._run(lambda api: api.write("POST", path, job, kind=JOB.name, params=params, timeout=30.0, guarded=False))

    def create(self, obj: Object) -> None:
        """Create an object of a kind that services have, or leave the one of its name that there is."""
        kind = KINDS[obj["kind"]]
        path = kind.path(obj["metadata"]["namespace"])
        params = {"fieldManager": FIELD_MANAGER}

        async def create(api: Api) -> None:
            try:
                await api.write("POST", path, obj, kind=kind.name, params=params, timeout=30.0, guarded=False)
            except ApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise

        self._run(create)

    def _run(self, call: Callable[[Api], Awaitable[T]]) -> T:
        async def run() -> T:
            configuration = await load_configuration(self._kubeconfig, self._context)
            async with Api(configuration, WriteFence()) as api:
                return await call(api)

        try:
            return asyncio.run(run())
        except (ConfigException, OSError) as error:
            hint = f" (--kubeconfig {self._kubeconfig})" if self._kubeconfig else "; give --kubeconfig or $KUBECONFIG"
            raise CommandError(f"no way to a cluster: {error}{hint}") from error
        except ApiError as error:
            raise CommandError(str(error)) from error
