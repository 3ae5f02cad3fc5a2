"""``/ui/stream``: the state of the router once, and each second what of it has changed.

Whatever is sent is put into JSON once a second for all viewers of the same scope. Without viewers nothing is done but a
sample of the traffic each second.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from blade_router.admission.controller import AdmissionController
from blade_router.admission.keys import Key
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Client
from blade_router.http.errors import Headers, Refused
from blade_router.http.head import RawRequest
from blade_router.ui.board import Board
from blade_router.ui.endpoint_rows import endpoint_rows, public_rows
from blade_router.ui.engine_rates import EngineRates
from blade_router.ui.models import models_of, named_models
from blade_router.ui.parts import OwnPart, Part
from blade_router.ui.scope import Scope, Tick
from blade_router.ui.service_report import ServiceReport
from blade_router.ui.siblings import SiblingParts
from blade_router.ui.state import RouterInfo
from blade_router.ui.static_files import GUARDS
from blade_router.ui.viewers import Viewer, Viewers

OWN = "own"
HEADERS: Headers = [
    *GUARDS,
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode
_NULL = b"null"


@dataclass(frozen=True, slots=True)
class About:
    """What the router says of itself."""

    version: str
    started: float
    workers: int
    policy: Callable[[], str]
    replicas: Callable[[], int]
    is_draining: Callable[[], bool]
    """It is about to end: its pages have to go to another one."""


class Stream:
    """Serves viewers."""

    def __init__(
        self,
        about: About,
        endpoints: EndpointSet,
        admission: AdmissionController,
        own: OwnPart,
        rates: EngineRates,
        report: ServiceReport,
        siblings: SiblingParts | None = None,
    ) -> None:
        self.viewers = Viewers()
        self._about = about
        self._endpoints = endpoints
        self._admission = admission
        self._own = own
        self._rates = rates
        self._report = report
        self._siblings = siblings
        self._board = Board()
        self._tick: Tick | None = None
        """The last one, while there are viewers and a second longer."""
        self._ticking = asyncio.Lock()

    async def __call__(self, request: RawRequest, client: Client) -> None:
        """Serve one viewer until it leaves.

        Raises:
            Refused: 401, its key is unknown; 503, there are too many viewers, or the router is about to end.
            ClientGone: the client left.
        """
        key = self._admission.keyring.find(request.headers)
        if self._about.is_draining():
            raise Refused(503, "this router is about to stop; try again shortly", code="draining", retry_after=1)
        scope = self._scope(key)
        self.viewers.check_room(scope)
        viewer = Viewer(client, scope)
        self.viewers.add(viewer)
        try:
            client.attach(viewer)
            client.start(200, HEADERS)
            if request.method != b"HEAD":
                await self._show(viewer)
                await viewer.closed
            await client.finish()
        finally:
            client.detach()
            self.viewers.remove(viewer)

    async def tick(self, now: float) -> None:
        """Send each viewer what is new; ``now``: seconds since 1970. Without viewers nothing is kept, but until then: a
        page that is opened again and again must not cost a look at everything each time."""
        if not self.viewers.count:
            self._board, self._tick = Board(), None
            return
        async with self._ticking:
            tick = self._tick = await self._look(now)
            moment = time.monotonic()
            for name, scope in list(self.viewers.scopes.items()):
                viewers = self.viewers.of(scope)
                if self._about.is_draining() or not self._is_valid(scope.key):
                    for viewer in viewers:
                        viewer.close()
                    self.viewers.scopes.pop(name, None)
                    continue
                update = self._update(scope, tick)
                for viewer in viewers:
                    viewer.send(update, moment)

    def _scope(self, key: Key) -> Scope:
        keyed = self._admission.keyring.required
        name = (key.name, key.digest) if keyed else ("", b"")
        scope = self.viewers.scopes.get(name)
        if scope is None:
            scope = Scope(name, key if keyed else None, not keyed or key.sees_all)
        return scope

    def _is_valid(self, key: Key | None) -> bool:
        """The key is still one, and may see what it did."""
        if key is None:
            return not self._admission.keyring.required
        return self._admission.keyring.named(key.name) == key and (key.expires is None or key.expires > time.time())

    async def _show(self, viewer: Viewer) -> None:
        """Send everything once."""
        async with self._ticking:
            if self._tick is None:
                self._tick = await self._look(time.time())
            if viewer.scope.is_new:
                self._update(viewer.scope, self._tick)
            viewer.send(None, time.monotonic())

    async def _look(self, now: float) -> Tick:
        """Find what all scopes have in common."""
        board, at = self._board, self._report.reported_at
        own = self._own.since(board.known(OWN), now, at)
        parts: list[tuple[str, Part]] = [(OWN, own)]
        if self._siblings is not None:
            parts += await self._siblings.query(board)
        board.update(parts)
        report = self._report
        return Tick(
            time=round(now, 3),
            board=board,
            acceptance=self._rates.acceptance(self._endpoints.all),
            models=named_models(self._admission, self._endpoints),
            all_endpoints=_encode(endpoint_rows(self._endpoints, self._rates, board.in_flight)),
            idle_endpoints=_encode(public_rows(self._endpoints, {})),
            service=report.full or _NULL,
            public_service=report.public or _NULL,
        )

    def _update(self, scope: Scope, tick: Tick) -> bytes | None:
        if scope.sees_all:
            endpoints = tick.all_endpoints
        elif busy := scope.own_in_flight(tick.board):
            endpoints = _encode(public_rows(self._endpoints, busy))
        else:
            endpoints = tick.idle_endpoints
        return scope.update(tick, _encode(self._router(scope, tick)), endpoints)

    def _router(self, scope: Scope, tick: Tick) -> RouterInfo:
        about = self._about
        return RouterInfo(
            version=about.version,
            started=about.started,
            policy=about.policy(),
            workers=about.workers,
            replicas=about.replicas(),
            keyed=self._admission.keyring.required,
            scope="all" if scope.sees_all else "own",
            key=scope.key.name if scope.key is not None else None,
            models=models_of(scope.key, tick.models),
        )
