"""Chat completions of a simulated router: what was asked is kept, and one sentence is the response to all of it."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

RESPONSE = "A red square."
REFUSAL = "messages[0].content[0]: image_url is not supported by this model; send text"


class Completions:
    """Responds to chat completions, streamed.

    Attributes:
        takes_images: whether the model does; a request with one is refused otherwise.
        bodies: those of all requests, in their order.
    """

    def __init__(self, *, takes_images: bool = True) -> None:
        self.takes_images = takes_images
        self.bodies: list[dict[str, Any]] = []

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """The handler of ``POST /v1/chat/completions``."""
        body = await request.json()
        self.bodies.append(body)
        if not self.takes_images and any(isinstance(message["content"], list) for message in body["messages"]):
            error = {"message": REFUSAL, "type": "invalid_request_error", "param": "messages", "code": "unsupported"}
            return web.json_response({"error": error}, status=400)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for delta, finish in (({"role": "assistant", "content": RESPONSE}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response
