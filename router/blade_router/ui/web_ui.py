"""The web UI: which of its paths is served how, and what it does in the background."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from blade_protocol import paths
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Client
from blade_router.http.errors import Refused
from blade_router.http.head import RawRequest
from blade_router.ui.engine_rates import EngineRates
from blade_router.ui.sampler import Sampler
from blade_router.ui.service_report import ServiceReport
from blade_router.ui.siblings import SiblingParts
from blade_router.ui.static_files import GUARDS, StaticFiles
from blade_router.ui.stream import Stream

_ROOT = paths.UI.encode()
_BELOW = _ROOT + b"/"
_STREAM = paths.UI_STREAM.encode()
_METHODS = (b"GET", b"HEAD")
AFTER = 0.005
"""Seconds after a whole one at which samples are taken: every process of a router has begun a new one by then."""


class WebUi:
    """Serves the paths of the web UI."""

    def __init__(
        self,
        files: StaticFiles,
        stream: Stream,
        report: ServiceReport,
        sampler: Sampler,
        rates: EngineRates,
        endpoints: EndpointSet,
        siblings: SiblingParts | None = None,
    ) -> None:
        self.stream = stream
        self.report = report
        self._siblings = siblings
        self._files = files
        self._sampler = sampler
        self._rates = rates
        self._endpoints = endpoints

    def handler(self, request: RawRequest) -> Callable[[RawRequest, Client], Awaitable[None]] | None:
        """What serves the request; None: it is none of the web UI's."""
        path = request.path
        if path == b"/":
            wants_page = b"text/html" in request.header(b"accept").lower() and request.method in _METHODS
            return self._redirect if wants_page else None
        if path != _ROOT and not path.startswith(_BELOW):
            return None
        if request.method not in _METHODS:
            return self._refuse_method
        return self._serve_stream if path == _STREAM else self._serve_file

    async def take_report(self, body: bytes) -> None:
        """Take over the operator's report of the service, for all processes.

        Raises:
            ValueError: it is none.
        """
        self.report.take(body)
        if self._siblings is not None:
            await self._siblings.announce()

    async def follow(self) -> None:
        """Take samples and keep viewers informed, until cancelled."""
        while True:
            now = time.time()
            await asyncio.sleep(1.0 - now % 1.0 + AFTER)
            now = time.time()
            self._sampler.sample(now)
            self._rates.note(self._endpoints.all, time.monotonic())
            await self.stream.tick(now)

    async def _serve_stream(self, request: RawRequest, client: Client) -> None:
        try:
            await self.stream(request, client)
        except Refused as refusal:
            await client.refuse(refusal)

    async def _serve_file(self, request: RawRequest, client: Client) -> None:
        name = request.path.decode("ascii").removeprefix(paths.UI).lstrip("/")
        await self._files.respond(name, request, client)

    async def _redirect(self, request: RawRequest, client: Client) -> None:
        client.start(302, [*GUARDS, (b"location", _BELOW), (b"vary", b"accept"), (b"content-length", b"0")])
        await client.finish()

    async def _refuse_method(self, request: RawRequest, client: Client) -> None:
        allow = [(b"allow", b"GET, HEAD")]
        message = f"{request.method.decode('ascii')} is not allowed here; use GET"
        await client.refuse(Refused(405, message, code="method_not_allowed", headers=allow))
