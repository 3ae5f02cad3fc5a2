"""Both sides of the external metrics API: an API server that says who may read what, and its front proxy."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from blade_operator.cluster.kubernetes.api import Api
from blade_operator.cluster.kubernetes.fence import WriteFence
from blade_operator.external_metrics.front_proxy import CONFIG_MAP_PATH
from blade_operator.external_metrics.samples import Samples
from blade_operator.external_metrics.server import ExternalMetrics
from blade_operator.model.objects import Key, Object
from operator_support.apiserver import refuse
from operator_support.tls import Authority

SERVER_NAME = "operator.system.svc"
USER = {"X-Remote-User": "system:serviceaccount:kube-system:horizontal-pod-autoscaler"}


class ReviewServer:
    """Keeps the ConfigMap of the front proxy and decides by name of the metric and namespace."""

    def __init__(self, authorities: str) -> None:
        self.data = {
            "requestheader-client-ca-file": authorities,
            "requestheader-allowed-names": '["front-proxy"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }
        self.reviews: list[Any] = []
        self.forbidden: set[str] = set()
        """Namespaces that nobody may read."""
        self.away = False

    async def handle(self, request: web.Request) -> web.Response:
        if self.away:
            return refuse((500, "etcd is away"))
        if request.path == CONFIG_MAP_PATH:
            return web.json_response({"data": self.data})
        assert (request.method, request.path) == ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews")
        review = await request.json()
        self.reviews.append(review["spec"])
        allowed = review["spec"]["resourceAttributes"]["namespace"] not in self.forbidden
        return web.json_response({**review, "status": {"allowed": allowed}})


class Aggregation:
    """A running server of external metrics, and requests to it as the front proxy makes them."""

    def __init__(self, folder: Path, authority: Authority, reviews: ReviewServer, served: ExternalMetrics) -> None:
        self.authority = authority
        self.reviews = reviews
        self.served = served
        self.certificate = folder / "certificate"
        self.serving = Authority(folder / "serving", "serving")
        self.serving.server(self.certificate, SERVER_NAME)
        self.running: asyncio.Task[None] | None = None

    def context(self, client: tuple[Path, Path] | None) -> ssl.SSLContext:
        """TLS of a client with that certificate, which expects the server's."""
        context = ssl.create_default_context(cafile=str(self.serving.file))
        if client is not None:
            context.load_cert_chain(*client)
        return context

    @asynccontextmanager
    async def session(
        self, client: tuple[Path, Path] | None = None, anonymous: bool = False
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """Connections of a client, by default of the front proxy."""
        certificate = None if anonymous else client or self.authority.client("front-proxy")
        connector = aiohttp.TCPConnector(ssl=self.context(certificate))
        url = f"https://127.0.0.1:{self.served.port}"
        async with aiohttp.ClientSession(url, connector=connector) as session:
            session.headers.update(USER)
            yield session

    async def get(self, session: aiohttp.ClientSession, path: str, **headers: str) -> tuple[int, Any]:
        """Status and document."""
        async with session.get(path, headers=headers, server_hostname=SERVER_NAME) as response:
            assert response.content_type == "application/json"
            return response.status, json.loads(await response.read())


@asynccontextmanager
async def aggregation(
    folder: Path, samples: Samples, services: Iterable[tuple[Key, Object]] = ()
) -> AsyncIterator[Aggregation]:
    """Serve metrics meanwhile; the process is a standby, which may write nothing."""
    authority = Authority(folder / "front-proxy", "front-proxy-ca")
    (folder / "certificate").mkdir()
    reviews = ReviewServer(authority.pem)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", reviews.handle)

    def found(namespace: str, names: frozenset[str] | None) -> list[tuple[Key, Object]]:
        of_namespace = [(key, obj) for key, obj in services if key.namespace == namespace]
        return [(key, obj) for key, obj in of_namespace if names is None or key.name in names]

    async with TestServer(app) as listening:
        configuration = client.Configuration(host=f"http://{listening.host}:{listening.port}")
        async with Api(configuration, WriteFence()) as api:
            with ExternalMetrics(api, samples, found, folder / "certificate", 0, "127.0.0.1") as served:
                world = Aggregation(folder, authority, reviews, served)
                world.running = asyncio.create_task(served.run())
                try:
                    yield world
                finally:
                    world.running.cancel()
                    await asyncio.gather(world.running, return_exceptions=True)
