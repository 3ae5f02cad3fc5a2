"""Requests with pictures and videos, in every form in which clients send them."""

import base64
import json
import random
from typing import Any

from blade_router.http.head import RawRequest
from blade_router.request.request import ClientRequest, read_request

MIB = 1 << 20
SHORT = "What is this?"
LONG = "All work and no play makes Jack a dull boy. " * 40

Part = dict[str, Any]


async def read(*parts: Part | str, path: bytes = b"/v1/chat/completions", **dumps: Any) -> ClientRequest:
    """A request with these parts, of which texts are given as such."""
    return await read_body({"model": "m", "messages": [{"role": "user", "content": content(*parts)}]}, path, **dumps)


async def read_body(body: dict[str, Any], path: bytes = b"/v1/chat/completions", **dumps: Any) -> ClientRequest:
    data = json.dumps(body, **dumps).encode()
    return await read_request(RawRequest(b"POST", path, [], True, True, body=data))


def content(*parts: Part | str) -> list[Part]:
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def picture(size: int, seed: int = 0) -> str:
    """Base64 of so many random bytes."""
    return base64.b64encode(random.Random(seed).randbytes(size)).decode()


def openai(data: str, **more: Any) -> Part:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", **more}}


def bare(data: str, **more: Any) -> Part:
    return {"type": "image_url", "image_url": f"data:image/png;base64,{data}", **more}


def video(data: str) -> Part:
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}


def frames(*data: str) -> Part:
    """A video as its frames."""
    return {"type": "video", "video": [f"data:image/jpeg;base64,{each}" for each in data], "fps": 2}


def responses(data: str) -> Part:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "high"}


def anthropic(data: str, **more: Any) -> Part:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}, **more}


def linked(url: str) -> Part:
    return {"type": "image_url", "image_url": {"url": url}}


def anthropic_linked(url: str) -> Part:
    return {"type": "image", "source": {"type": "url", "url": url}}


EMBEDDED = [openai, bare, video, frames, responses, anthropic]
SIZES = [400, 60_000, 600_000, 3 * MIB]
"""Of pictures in a part that is digested as it stands, in a small body, in one parsed whole, in one abridged."""
