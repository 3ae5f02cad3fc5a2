"""The admin application: everything but the data path, that is health, liveness, metrics, signals and status.

Health and liveness are also on the public port. It is queried a few times a second at most, so it uses FastAPI.
"""

import time
from collections.abc import Awaitable, Callable

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from blade_protocol import paths
from blade_router.admin.debug import AsKey, add_debug_route
from blade_router.admin.quotas import add_quotas_route
from blade_router.admin.replica_sync import ReplicaSync, add_sync_route
from blade_router.admin.service_report import add_service_route
from blade_router.admin.sibling_workers import SiblingWorkers
from blade_router.admin.signals import add_signals_route
from blade_router.http.errors import error_body
from blade_router.observability.metrics import Metrics
from blade_router.observability.signals import router_signals
from blade_router.proxy.proxy import Proxy


class EndpointStatus(BaseModel):
    name: str
    url: str
    revision: str
    up: bool | None
    """None before the first health check."""
    draining: bool
    ejected_for: float
    """Seconds until its ejection ends."""
    failures: int
    breaker: str
    """closed, half-open or open."""
    weight: float
    """Below 1 during slow start."""
    in_flight: int
    engine: str
    running: int
    """This and what follows are from the engine's last load report."""
    waiting: int
    kv_usage: float | None
    cache_tokens: int
    models: list[str]
    adapters: list[str]


class WorkerStatus(BaseModel):
    worker: int
    pid: int
    in_flight: int


class RouterStatus(BaseModel):
    policy: str
    models: list[str]
    in_flight: int
    sources: dict[str, bool]
    """Whether each can be read at the moment; what is known stays in effect while one cannot."""
    worker: int
    """The process that responds."""
    workers: list[WorkerStatus]
    """The processes of this router; everything else here is the state of the one that responds."""
    endpoints: list[EndpointStatus]


class Health(BaseModel):
    status: str
    reason: str
    endpoints: int
    usable: int


def make_admin(
    proxy: Proxy,
    metrics: Metrics,
    models: list[str],
    sources: Callable[[], dict[str, bool]],
    workers: SiblingWorkers | None = None,
    *,
    debug_routes: bool = False,
    quotas: Callable[[bytes], Awaitable[bytes]] | None = None,
    as_key: AsKey | None = None,
    sync: ReplicaSync | None = None,
    service_report: Callable[[bytes], Awaitable[None]] | None = None,
) -> FastAPI:
    """Create the ASGI application for every page of the router's own. The caller keeps ``models`` up to date."""
    # No redirects: they would go wherever the client's Host says.
    app = FastAPI(title="BladeLLM router", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    @app.exception_handler(HTTPException)
    async def openai_shaped(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}; the OpenAI API is on the public port"
        body = error_body(error.status_code, message, "not_found" if error.status_code == 404 else "invalid_request")
        return Response(body, error.status_code, error.headers, media_type="application/json")

    @app.get(paths.LIVE)
    async def live() -> dict[str, str]:
        """200 as long as the process responds."""
        return {"status": "ok"}

    @app.post(paths.PING, response_model=Health)
    @app.get(paths.PING, response_model=Health)
    @app.get(paths.HEALTH, response_model=Health)
    async def health() -> Response:
        """200 while at least one endpoint is healthy or one is started for the next request, 503 with the reason
        otherwise."""
        known, usable = len(proxy.endpoints.all), proxy.endpoints.usable_count()
        if usable:
            reason = ""
        elif metrics.request_queues.pending.wakes:
            body = Health(status="sleeping", reason="a request starts an engine", endpoints=known, usable=usable)
            return JSONResponse(body.model_dump())
        elif known:
            reason = f"none of {known} endpoints is healthy: all are down, ejected, draining or not checked yet"
        else:
            reason = "no endpoint is registered yet"
        body = Health(status="unavailable" if reason else "ok", reason=reason, endpoints=known, usable=usable)
        return JSONResponse(body.model_dump(), 503 if reason else 200)

    @app.get(paths.LOAD)
    async def load() -> dict[str, int]:
        """How many requests are in flight, those that wait included, in vLLM's shape."""
        in_flight = metrics.in_flight if workers is None else sum(each.in_flight for each in await workers.status())
        return {"server_load": in_flight}

    @app.get(paths.METRIC)
    @app.get(paths.METRICS)
    async def prometheus() -> Response:
        text = metrics.render() if workers is None else await workers.metrics()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def signals() -> bytes:
        return msgspec.json.encode(router_signals(metrics)) if workers is None else await workers.signals()

    add_signals_route(app, signals, metrics.request_queues.demand)

    @app.get(paths.STATUS)
    async def status() -> RouterStatus:
        """The router's state, for people and for the operator."""
        now = time.monotonic()
        return RouterStatus(
            policy=proxy.policy.name,
            models=models,
            in_flight=metrics.in_flight,
            sources=sources(),
            worker=workers.index if workers is not None else 0,
            workers=[
                WorkerStatus(worker=each.worker, pid=each.pid, in_flight=each.in_flight)
                for each in (await workers.status() if workers is not None else [])
            ],
            endpoints=[
                EndpointStatus(
                    name=endpoint.name,
                    url=endpoint.url,
                    revision=endpoint.revision,
                    up=endpoint.health.up,
                    draining=not endpoint.admits,
                    ejected_for=max(0.0, endpoint.health.ejected_until - now),
                    failures=endpoint.health.failures,
                    breaker=endpoint.health.breaker.state(now),
                    weight=endpoint.health.weight,
                    in_flight=endpoint.in_flight,
                    engine=endpoint.config.engine,
                    running=endpoint.report.running,
                    waiting=endpoint.report.waiting,
                    kv_usage=endpoint.report.kv_usage,
                    cache_tokens=endpoint.report.cache_tokens,
                    models=sorted(endpoint.report.models),
                    adapters=sorted(endpoint.report.adapters),
                )
                for endpoint in proxy.endpoints.all
            ],
        )

    if quotas is not None:
        add_quotas_route(app, quotas)
    if sync is not None:
        add_sync_route(app, sync)
    if service_report is not None:
        add_service_route(app, service_report)
    add_debug_route(app, proxy, open_to_all=debug_routes, as_key=as_key)
    return app
