"""CORS (the Fetch standard's protocol): which web pages may use the API from a browser. A bare ASGI middleware.

The router has the same rules for a service; this is for an engine that pages call without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blade_protocol import anthropic, headers

ANY: Final = "*"
_EXPOSED: Final = ", ".join(
    (headers.REQUEST_ID, headers.IGNORED, headers.UNHELD, "retry-after", anthropic.REQUEST_ID)
).encode()
_Headers = list[tuple[bytes, bytes]]
_PREFLIGHT: Final[_Headers] = [
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-max-age", b"600"),
    (b"content-length", b"0"),
]


class CorsMiddleware:
    """Allows pages of ``origins`` (``*``: of any) to read responses."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        origins = tuple(origins)
        self._any = ANY in origins
        self._origins = frozenset(origin.lower().encode("latin-1", "replace") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin = given.get(b"origin")
        if not origin:
            await self._app(scope, receive, send)
            return
        added = self._headers_for(origin)
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in given:
            wanted = given.get(b"access-control-request-headers")
            allowed = [(b"access-control-allow-headers", wanted)] if wanted else []
            await send({"type": "http.response.start", "status": 204, "headers": [*added, *_PREFLIGHT, *allowed]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, send_with_headers if added else send)

    def _headers_for(self, origin: bytes) -> _Headers:
        """Empty for an origin that is not allowed."""
        if self._any:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        if origin.lower() not in self._origins:
            return []
        allowed = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        return [*allowed, (b"access-control-expose-headers", _EXPOSED)]
