"""``POST /debug/route``: explains where a request would go, and why. For people; it changes nothing.

The response shows how well a prompt is cached where, so access is limited to this machine, to holders of the internal
token, or to everybody with ``--debug_routes``.
"""

import math
import time

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from blade_protocol import headers, paths
from blade_router.config.internal_token import may_see_routes, token_file
from blade_router.endpoints.endpoint import Endpoint
from blade_router.http.errors import Refused
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


def add_debug_route(app: FastAPI, proxy: Proxy, *, open_to_all: bool) -> None:
    """Add the route. ``open_to_all``: without it only loopback addresses and token holders may use it."""

    @app.post(paths.DEBUG_ROUTE, response_model=Route)
    async def route(request: Request, path: str = "/v1/chat/completions", service: str = "") -> Response:
        """Body: as that of ``path``. ``service``: whose endpoints, where the router serves several."""
        try:
            if not (open_to_all or _trusted(request)):
                raise Refused(
                    403,
                    "query it from the router's own machine, send the internal token, or start it with --debug_routes",
                    code="debug_refused",
                )
            fields, abridged = await read_fields(await request.body())
        except Refused as refusal:
            return Response(refusal.body, refusal.status, media_type="application/json")
        client_request = ClientRequest(
            "POST", path, fields, b"", b"debug", headers=request.headers.raw, abridged=abridged
        )
        return JSONResponse(_explain(proxy, client_request, service).model_dump())


def _explain(proxy: Proxy, client_request: ClientRequest, service: str) -> Route:
    policy = proxy.policy.dry_run_copy()
    adapter = policy.adapter(client_request)
    candidates, panic = proxy.endpoints.candidates(service=service, adapter=adapter)
    scores = policy.scores(candidates, client_request) if candidates else {}
    choice = policy.choose(candidates, client_request) if candidates else None
    now = time.monotonic()
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
                excluded=None if endpoint in candidates else _exclusion_reason(endpoint, service, now),
                scores={
                    name: value if math.isfinite(value) else None  # JSON knows no infinity
                    for name, value in scores.get(endpoint.name, {}).items()
                },
            )
            for endpoint in proxy.endpoints.all
        ],
    )


def _exclusion_reason(endpoint: Endpoint, service: str, now: float) -> str:
    if endpoint.config.service != service:
        return f"it serves {endpoint.config.service or 'no named service'}"
    if not endpoint.admits:
        return "it is draining"
    if endpoint.health.up is None:
        return "it has not been checked yet"
    if not endpoint.health.up:
        return "its health check fails"
    if endpoint.health.ejected_until > now:
        return f"ejected for {endpoint.health.ejected_until - now:.1f} s after {endpoint.health.failures} failures"
    if endpoint.usable(now):
        return "it has not loaded the adapter"
    return "the router holds it back"


def _trusted(request: Request) -> bool:
    given = request.headers.get(headers.INTERNAL_TOKEN, "")
    host = request.client.host if request.client is not None else ""
    forwarded = "forwarded" in request.headers or "x-forwarded-for" in request.headers
    return may_see_routes(token_file(), given, host, forwarded=forwarded)
