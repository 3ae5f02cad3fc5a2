"""The bridge to an ASGI application: rare requests may cost a web framework."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from blade_router.http.client import Client
from blade_router.http.head import RawRequest

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class _Gone:
    """Notices that the client leaves."""

    def __init__(self) -> None:
        self.future = asyncio.get_running_loop().create_future()

    def abort(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_result(None)


async def serve(application: Application, request: RawRequest, client: Client) -> None:
    """Serve a request by an application. HEAD is passed as GET; the client gets no body."""
    path, _, query = request.target.partition(b"?")
    method = request.method.decode("ascii")
    scope: Message = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1" if request.http11 else "1.0",
        "method": "GET" if method == "HEAD" else method,
        "scheme": "http",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": request.headers,
        "client": client.peer,
        "server": None,
    }
    bodies = [request.body]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        gone = _Gone()
        client.attach(gone)
        try:
            await gone.future
        finally:
            client.detach()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            await client.start(message["status"], list(message["headers"]))
        elif message.get("more_body"):
            await client.write(message["body"])
        else:
            await client.finish(message.get("body", b""))

    await application(scope, receive, send)
