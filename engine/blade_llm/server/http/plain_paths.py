"""Paths as people type them, and what a stream's comments are: what is added to a request's scope before all else.

A base URL that ends in a slash makes ``//v1/…``, and some clients add a slash at the end. Both mean the path without:
a redirect would lose the body of many a client, and lead past a router.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from blade_llm.api.common.comments import SCOPE_KEY, StreamComments
from blade_protocol import headers

_COMMENTS = headers.COMMENTS.encode()


class PlainPaths:
    """A bare ASGI middleware. ``comments``: for streams whose sender does not say that it wants none."""

    def __init__(self, app: ASGIApp, comments: StreamComments) -> None:
        self._app = app
        self._comments = comments

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"]
            if path.startswith("//") or path.endswith("/"):
                scope["path"] = "/" + path.strip("/")
            if (_COMMENTS, b"0") not in scope["headers"]:
                scope[SCOPE_KEY] = self._comments
        await self._app(scope, receive, send)
