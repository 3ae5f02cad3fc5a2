"""Responds to the aggregation layer: discovery, and values of metrics. One user's request, one response, no state.

Discovery is open to every user that the front proxy names, as it is for the API server's own groups; a value to who may
read it. There is no OpenAPI document: the aggregation layer passes over a server that has none.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec
from aiohttp import web

from blade_operator import metrics
from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.external_metrics import documents
from blade_operator.external_metrics.access import Access
from blade_operator.external_metrics.catalog import METRICS, NotMeasured
from blade_operator.external_metrics.front_proxy import CONFIG_MAP_PATH, FrontProxy, Unauthenticated, User
from blade_operator.external_metrics.listener import Listener, tls_context
from blade_operator.external_metrics.samples import Samples
from blade_operator.external_metrics.selector import only, parse
from blade_operator.model.objects import Key, Object
from blade_protocol.labels import NAME

_log = logging.getLogger(__name__)

RESPONSE_SECONDS: Final = 5.0
"""Within which a response is given; the API server's own patience with a controller is longer."""
IDLE_SECONDS: Final = 120.0
"""After which an unused connection is closed; the API server closes its own after 90."""
MOST_SERVICES: Final = 64
"""That one request may select."""
REFRESH_SECONDS: Final = 60.0
"""Between two looks at the certificate and at the front proxy's authority."""
RETRY_SECONDS: Final = 2.0
"""The same, until there is something to listen with."""
_LONGEST_LINE = 16_384
"""Bytes of a request line, and of one header: a user's group may be long."""

Services = Callable[[str, frozenset[str] | None], Iterable[tuple[Key, Object]]]


class Refused(Exception):
    """The response is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ExternalMetrics:
    """The server. A context manager that holds its port; `run` serves.

    ``services``: the LLMServices of a namespace, all or those of these names, with their labels. ``certificate``: the
    folder with ``tls.crt`` and ``tls.key``.
    """

    def __init__(
        self,
        api: Api,
        samples: Samples,
        services: Services,
        certificate: Path,
        port: int,
        host: str | None = None,
    ) -> None:
        """Raises OSError when the port is taken."""
        self._api = api
        self._access = Access(api)
        self._samples = samples
        self._services = services
        self._certificate = certificate
        self._server = web.Server(
            self._handle,
            access_log=None,
            keepalive_timeout=IDLE_SECONDS,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
        )
        self._listener = Listener(self._server, port, host)
        self._front_proxy: FrontProxy | None = None
        self._fingerprint: Any = None
        self._problem = ""

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.port

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listener.run())
                group.create_task(self._follow())
        finally:
            await self._server.shutdown(0.5)

    def __enter__(self) -> ExternalMetrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.__exit__(kind, error, trace)

    async def _follow(self) -> None:
        """Use the certificate and the front proxy's authority as they are, from the first time they can be read."""
        while True:
            try:
                await self.refresh()
                self._problem = ""
            except Exception as error:  # whatever it is, LLMServices are kept as declared
                if str(error) != self._problem:
                    kept = "; those of before stay in use" if self._front_proxy is not None else ""
                    _log.error("external metrics: certificate or front proxy: %s%s", error, kept)
                self._problem = str(error)
            await asyncio.sleep(REFRESH_SECONDS if self._front_proxy is not None else RETRY_SECONDS)

    async def refresh(self) -> None:
        """Look at the certificate and at the front proxy's authority once.

        Raises:
            ApiError: the API server does not show its ConfigMap.
            OSError, ValueError: the certificate is none, or aggregation is not set up.
        """
        front_proxy = FrontProxy.of(await self._api.get(CONFIG_MAP_PATH, kind="ConfigMap", timeout=RESPONSE_SECONDS))
        fingerprint = (front_proxy, await asyncio.to_thread(_digest, self._certificate))
        if fingerprint != self._fingerprint:
            try:
                context = await asyncio.to_thread(tls_context, self._certificate, front_proxy.authorities)
            except ssl.SSLError as error:
                raise ValueError(
                    f"{self._certificate}/tls.crt, tls.key or the front proxy's authority: {error}"
                ) from error
            self._front_proxy, self._fingerprint = front_proxy, fingerprint
            self._listener.use(context)
            _log.info("external metrics: serving on port %d", self.port)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                code, body = 200, await self._respond(request)
        except Refused as error:
            code, body = error.code, documents.failure(error.code, str(error))
        except (ApiError, TimeoutError) as error:
            message = str(error) or f"no response within {RESPONSE_SECONDS:g} s"
            code, body = 503, documents.failure(503, message)
        metrics.EXTERNAL_METRICS_REQUESTS.labels(str(code)).inc()
        return web.Response(body=msgspec.json.encode(body), status=code, content_type="application/json")

    async def _respond(self, request: web.BaseRequest) -> documents.Document:
        user = self._user(request)
        if request.method != "GET":
            raise Refused(405, f"{request.method} is not allowed: metrics can be read only")
        match request.path.removesuffix("/").split("/"):
            case ["", "apis"]:
                return documents.api_groups()
            case ["", "apis", group] if group in documents.GROUPS:
                return documents.api_group(group)
            case ["", "apis", group, documents.VERSION] if group in documents.GROUPS:
                return documents.api_resources(group)
            case ["", "apis", group, documents.VERSION, "namespaces", namespace, metric] if group in documents.GROUPS:
                selector = request.query.get("labelSelector", "")
                return await self._values(user, group, namespace, metric, selector)
        raise Refused(404, f"there is no {request.path[:200]}")

    def _user(self, request: web.BaseRequest) -> User:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        if not certificate or self._front_proxy is None:
            raise Refused(401, "the connection has ended")
        names = [value for pairs in certificate.get("subject", ()) for key, value in pairs if key == "commonName"]
        try:
            return self._front_proxy.user(names[0] if names else "", request.headers)
        except Unauthenticated as error:
            raise Refused(401, str(error)) from error

    async def _values(self, user: User, group: str, namespace: str, metric: str, selector: str) -> documents.Document:
        if not await self._access.allows(user, group, namespace, metric):
            message = f'user "{user.name}" cannot list resource "{metric}" in API group "{group}"'
            raise Refused(403, f'{message} in the namespace "{namespace}"')
        found = METRICS.get(metric)
        if found is None:
            raise Refused(404, f"there is no metric {metric[:100]!r}; there are {', '.join(METRICS)}")
        keys = self._select(namespace, selector)
        try:
            values = await asyncio.gather(*(self._samples.value(key, found) for key in keys))
        except NotMeasured as error:
            raise Refused(503, str(error)) from error
        return documents.value_list(
            group,
            (
                documents.metric_value(metric, {NAME: key.name}, at, value)
                for key, (at, value) in zip(keys, values, strict=True)
            ),
        )

    def _select(self, namespace: str, text: str) -> list[Key]:
        """The services that a selector is of, by name. Some value of one of them that is missing is an error: a
        HorizontalPodAutoscaler adds up what it gets."""
        try:
            requirements = parse(text)
        except ValueError as error:
            raise Refused(400, str(error)) from error
        services = self._services(namespace, only(requirements, NAME))
        found = sorted(
            key
            for key, service in services
            if all(each.accepts((service["metadata"].get("labels") or {}) | {NAME: key.name}) for each in requirements)
        )
        if not found:
            raise Refused(404, f"no LLMService in namespace {namespace} has labels {text or '(any)'}")
        if len(found) > MOST_SERVICES:
            raise Refused(
                400,
                f"{len(found)} LLMServices in namespace {namespace} have labels {text or '(any)'}, and one request may "
                f"be of {MOST_SERVICES}: select fewer, such as {NAME}={found[0].name}",
            )
        return found


def _digest(folder: Path) -> bytes:
    return hashlib.sha256(b"\0".join((folder / name).read_bytes() for name in ("tls.crt", "tls.key"))).digest()
