"""``POST /debug/route``: explains where a request would go, and why. For people; it changes nothing.

The response shows how well a prompt is cached where, so access is limited to this machine, to holders of the internal
token, or to everybody with ``--debug_routes``. What is cached for a key is shown to the first two only.
"""

import math
import time
from collections.abc import Callable, Sequence

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from blade_protocol import paths
from blade_router.admin.access import presented_tokens
from blade_router.config.internal_token import may_see_routes, token_file
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.errors import Refused
from blade_router.policies.load import choosable
from blade_router.proxy.proxy import Proxy
from blade_router.request.request import ClientRequest, read_fields


class Candidate(BaseModel):
    name: str
    url: str
    revision: str
    chosen: bool
    excluded: str | None
    """Why it cannot be chosen at the moment; null: it can."""
    scores: dict[str, float | None]
    """The policy's scores, by name; the lowest ``score`` or ``cost`` wins. null: not a finite number."""


class Route(BaseModel):
    policy: str
    endpoint: str | None
    reason: str
    """As in ``x-blade-route-reason``."""
    panic: bool
    """No endpoint is usable, so all that are not draining are tried."""
    prompt_tokens: int
    """An estimate by size."""
    endpoints: list[Candidate]


AsKey = Callable[[ClientRequest, str], str]
"""Makes of a request one of the key of that name, and returns its service; see ``AdmissionController.dry_run``."""


def add_debug_route(app: FastAPI, proxy: Proxy, *, open_to_all: bool, as_key: AsKey | None = None) -> None:
    """Add the route. ``open_to_all``: without it only loopback addresses and token holders may use it."""

    @app.post(paths.DEBUG_ROUTE, response_model=Route)
    async def route(request: Request, path: str = "/v1/chat/completions", service: str = "", key: str = "") -> Response:
        """Body: as that of ``path``. ``service``: whose endpoints, where the router serves several. ``key``: the name
        of the API key whose request it is taken for."""
        try:
            if not ((open_to_all and not key) or _trusted(request)):
                raise Refused(
                    403,
                    "query it from the router's own machine, send the internal token, or start it with --debug_routes",
                    code="debug_refused",
                )
            body = await request.body()
            fields, abridged = await read_fields(body)
            client_request = ClientRequest(
                "POST", path, fields, body, b"debug", headers=request.headers.raw, abridged=abridged
            )
            if key and as_key is not None:
                found = as_key(client_request, key)
                service = service or found
        except Refused as refusal:
            return Response(refusal.body, refusal.status, media_type="application/json")
        return JSONResponse(_explain(proxy, client_request, service, key).model_dump())


def _explain(proxy: Proxy, client_request: ClientRequest, service: str, key: str) -> Route:
    policy = proxy.policy.dry_run_copy()
    adapter = policy.adapter(client_request)
    candidates, panic = proxy.endpoints.candidates(service=service, adapter=adapter, key=key)
    choices = choosable(policy, candidates)
    scores = policy.scores(choices, client_request) if choices else {}
    choice = policy.choose(choices, client_request) if choices else None
    excluded = _Exclusion(proxy.endpoints, service, adapter, key, candidates, panic=panic)
    return Route(
        policy=policy.name,
        endpoint=choice.endpoint.name if choice else None,
        reason=choice.reason if choice else "no endpoint may be chosen",
        panic=panic,
        prompt_tokens=client_request.prompt.tokens,
        endpoints=[
            Candidate(
                name=endpoint.name,
                url=endpoint.url,
                revision=endpoint.revision,
                chosen=choice is not None and endpoint is choice.endpoint,
                excluded=None if endpoint in choices else excluded.reason(endpoint),
                scores={
                    name: value if math.isfinite(value) else None  # JSON knows no infinity
                    for name, value in scores.get(endpoint.name, {}).items()
                },
            )
            for endpoint in proxy.endpoints.all
        ],
    )


class _Exclusion:
    """Why a request of a key may not go to some endpoints."""

    def __init__(
        self,
        endpoints: EndpointSet,
        service: str,
        adapter: str | None,
        key: str,
        candidates: Sequence[Endpoint],
        *,
        panic: bool,
    ) -> None:
        of_service = endpoints.of_service(service)
        self._service = service
        self._candidates = candidates
        self._panic = panic
        self._with_adapter = [endpoint for endpoint in of_service if adapter and adapter in endpoint.report.adapters]
        self._part = endpoints.confinement.part(of_service)
        self._confined = endpoints.confinement.is_confined(key)
        self._now = time.monotonic()

    def reason(self, endpoint: Endpoint) -> str:
        if endpoint.config.service != self._service:
            return f"it serves {endpoint.config.service or 'no named service'}"
        if not endpoint.admits:
            return "it is draining"
        if not (self._panic or endpoint.usable(self._now)):
            return self._unusable(endpoint)
        if self._with_adapter and endpoint not in self._with_adapter:
            return "it has not loaded the adapter"
        if endpoint in self._candidates:
            return "it has no free slot, and another one has"
        if self._part and self._confined != (endpoint in self._part):
            if self._confined:
                return "the key is confined to other endpoints, as its requests killed engines"
            return "keys whose requests killed engines are confined to it"
        if endpoint.suspects:
            return "a request that is suspected of killing engines is being tried on it"
        return "the router holds it back"

    def _unusable(self, endpoint: Endpoint) -> str:
        health = endpoint.health
        if health.up is None:
            return "it has not been checked yet"
        if not health.up:
            return "its health check fails"
        if health.ejected_until > self._now:
            return f"ejected for {health.ejected_until - self._now:.1f} s after {health.failures} failures"
        return "its ejection has ended, and one request is trying it"


def _trusted(request: Request) -> bool:
    host = request.client.host if request.client is not None else ""
    forwarded = "forwarded" in request.headers or "x-forwarded-for" in request.headers
    return any(may_see_routes(token_file(), each, host, forwarded=forwarded) for each in presented_tokens(request))
