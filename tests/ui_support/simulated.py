"""A router of which only the web UI and what it asks are there, with simulated states and responses.

``python -m ui_support.simulated --scenario big --port 18090 --static router/blade_router/ui/static``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from ui_support.completions import Completions
from ui_support.scenarios import SCENARIOS

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""As the router sends it."""
STATIC = Path(__file__).parents[2] / "router/blade_router/ui/static"
"""The committed build."""
_BODY_BYTES = 16 << 20
"""As large as a request's body may be, as of the router."""
_HEADERS = {"content-security-policy": CSP, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


def application(
    scenario: str,
    static: Path = STATIC,
    *,
    key: str = "",
    interval: float = 1.0,
    completions: Completions | None = None,
) -> web.Application:
    """The server's routes.

    Args:
        scenario: one of ``SCENARIOS``.
        static: folder with ``index.html``.
        key: the only API key; empty for none.
        interval: seconds between two updates, each of which is one simulated second.
        completions: responds to chat completions, without a key (default: a fresh one).
    """
    held = SCENARIOS[scenario](time.time())
    viewers: set[asyncio.Queue[bytes]] = set()

    async def follow(_: web.Application) -> AsyncIterator[None]:
        async def tick() -> None:
            while True:
                await asyncio.sleep(interval)
                event = _event("update", held.update())
                for viewer in viewers:
                    viewer.put_nowait(event)

        ticking = asyncio.create_task(tick())
        yield
        ticking.cancel()

    def allowed(request: web.Request) -> bool:
        return not key or request.headers.get("authorization", "") == f"Bearer {key}"

    async def file(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(_file(static, request.match_info["path"]), headers=_HEADERS)

    async def stream(request: web.Request) -> web.StreamResponse:
        if not allowed(request):
            return _unauthorized()
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
        await response.prepare(request)
        events: asyncio.Queue[bytes] = asyncio.Queue()
        events.put_nowait(_event("snapshot", held.snapshot()))
        viewers.add(events)
        try:
            while True:
                await response.write(await events.get())
        except ConnectionError:
            return response
        finally:
            viewers.discard(events)

    async def models(request: web.Request) -> web.StreamResponse:
        if not allowed(request):
            return _unauthorized()
        known = held.snapshot()["router"]["models"]
        data = [{"id": model["id"], "object": "model", "created": 0, "owned_by": "bladellm"} for model in known]
        return web.json_response({"object": "list", "data": data})

    async def root(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/ui/")

    routes = web.Application(client_max_size=_BODY_BYTES)
    routes.cleanup_ctx.append(follow)
    routes.router.add_get("/", root)
    routes.router.add_get("/ui/stream", stream)
    routes.router.add_get("/ui/{path:.*}", file)
    routes.router.add_get("/v1/models", models)
    routes.router.add_post("/v1/chat/completions", (completions or Completions()).respond)
    return routes


def _file(static: Path, name: str) -> Path:
    found = (static / (name or "index.html")).resolve()
    if not found.is_relative_to(static.resolve()) or not found.is_file():
        raise web.HTTPNotFound(text="no such file")
    return found


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _unauthorized() -> web.Response:
    error = {
        "message": "a valid API key is needed",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    return web.json_response({"error": error}, status=401)


def main() -> None:
    """Parses the command line and serves until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="calm")
    parser.add_argument("--port", type=int, default=18090)
    parser.add_argument("--static", type=Path, default=STATIC, help="folder with index.html")
    parser.add_argument("--key", default="", help="the only API key (default: none is needed)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two updates")
    options = parser.parse_args()
    routes = application(options.scenario, options.static, key=options.key, interval=options.interval)
    web.run_app(routes, host="127.0.0.1", port=options.port, shutdown_timeout=1)


if __name__ == "__main__":
    main()
