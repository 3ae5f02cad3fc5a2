"""Bodies of the largest size a router admits, in every shape that is expensive to read for somebody.

    python -m benchmarks.router.bodies      longest hold of the event loop and memory for each shape, no engine needed

Tests read the same bodies and count work and memory; here are the seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

from benchmarks.figures import Figure
from blade_protocol import paths
from blade_protocol.routing import ModelConfig
from blade_router.admission.tokens import Estimate
from blade_router.http.errors import Refused
from blade_router.http.head import RawRequest
from blade_router.request.models import Target, prepare
from blade_router.request.request import ClientRequest, read_request

SIZE: Final = 16 << 20
MAX_HOLD_MS: Final = 20.0
PATH: Final = paths.CHAT_COMPLETIONS.encode()
ALIAS: Final = Target("", ModelConfig(name="other", aliases=("m",), defaults={"top_p": 0.9}, max_tokens=10))
MAX_MEMORY: Final = 2.0
"""Multiples of the body, itself included."""


def filled(start: bytes, item: bytes, end: bytes) -> Callable[[int], bytes]:
    """A body of the size that is asked for, with as many of ``item``, which ends in a comma, as fit."""

    def make(size: int) -> bytes:
        return start + (item * ((size - len(start) - len(end)) // len(item)))[:-1] + end

    return make


def text(start: bytes, item: bytes, end: bytes) -> Callable[[int], bytes]:
    """The same with a text in between."""

    def make(size: int) -> bytes:
        return start + item * ((size - len(start) - len(end)) // len(item)) + end

    return make


_FILE = (
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'
)
SHAPES: Final[dict[str, Callable[[int], bytes]]] = {
    "input of ones": filled(b'{"model":"m","input":[', b"1,", b"]}"),
    "prompt of tokens": filled(b'{"model":"m","prompt":[', b"15123,", b"]}"),
    "prompt of spread tokens": filled(b'{"model":"m","prompt":[', b"\n      15123,", b"]}"),
    "prompts of tokens": filled(b'{"model":"m","prompt":[', b"[" + b"15123," * 300 + b"7],", b"]}"),
    "prompts of one token": filled(b'{"model":"m","prompt":[', b"[1],", b"]}"),
    "empty prompts": filled(b'{"model":"m","prompt":[', b'"",', b"]}"),
    "short texts": filled(b'{"model":"m","input":[', b'"' + b"a" * 100 + b'",', b"]}"),
    "content of ones": filled(b'{"model":"m","messages":[{"role":"user","content":[', b"1,", b"]}]}"),
    "empty messages": filled(b'{"model":"m","messages":[', b"{},", b"]}"),
    "messages": filled(b'{"model":"m","messages":[', b'{"role":"user","content":"hi"},', b"]}"),
    "parts": filled(b'{"model":"m","messages":[{"role":"user","content":[', b'{"type":"text","text":"x"},', b"]}]}"),
    "tools": filled(b'{"model":"m","tools":[', b'{"type":"function"},', b"]}"),
    "an unknown list": filled(b'{"model":"m","x":[', b"1,", b"]}"),
    "one field many times": filled(b'{"model":"m",', b'"user":"x",', b"}"),
    "nested lists": filled(b'{"model":"m","input":[', b"[" * 400 + b"]" * 400 + b",", b"]}"),
    "open lists": text(b'{"model":"m","input":', b"[", b""),
    "spaces": text(b'{"model":"m"', b" ", b"}"),
    "no object": filled(b"[", b"1,", b"]"),
    "a long number": text(b'{"model":"m","max_tokens":', b"1", b"}"),
    "a long model": text(b'{"model":"', b"m", b'"}'),
    "a prompt": text(b'{"model":"m","prompt":"', b"a", b'"}'),
    "a chat": text(b'{"model":"m","messages":[{"role":"user","content":"', b"Lorem ipsum, dolor.\\n", b'"}]}'),
    "a prompt of two-byte letters": text(b'{"model":"m","prompt":"', "é".encode(), b'"}'),
    "escapes": text(b'{"model":"m","prompt":"', b"\\u00e9", b'"}'),
    "escaped quotes": text(b'{"model":"m","prompt":"', b'\\"', b'"}'),
    "an unfinished text": text(b'{"model":"m","prompt":"', b'\\"', b""),
    "a picture": text(_FILE, b"A", b'"}}]}]}'),
    "many pictures": filled(
        b'{"model":"m","messages":[{"role":"user","content":[',
        _FILE[_FILE.index(b'{"type"') :] + b"A" * 4000 + b'"}},',
        b"]}]}",
    ),
    "a picture of /v1/messages": text(
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64",'
        b'"media_type":"image/png","data":"',
        b"A",
        b'"}}]}]}',
    ),
    "pictures at URLs": filled(
        b'{"model":"m","messages":[{"role":"user","content":[',
        b'{"type":"image_url","image_url":{"url":"https://example.com/1.png"}},',
        b"]}]}",
    ),
    "fields that look like files": filled(
        b'{"model":"m","x":[', b'{"url":"data:;base64,' + b"\\\\" * 130 + b'"},', b"]}"
    ),
}


async def read(body: bytes, *, rewrite: bool) -> ClientRequest:
    """Do with a body all that a router does before the request goes to an engine.

    Args:
        rewrite: its model is an alias and it lacks a default, which makes another body of it.

    Raises:
        Refused: the router would refuse it.
    """
    raw = RawRequest(b"POST", PATH, [(b"content-type", b"application/json")], True, True, body=body)
    request = await read_request(raw)
    prepare(request, ALIAS if rewrite else Target(""), None)
    await asyncio.sleep(0)
    estimate = Estimate()
    estimate.prompt(request)
    estimate.output(request)
    request.prompt.chain  # noqa: B018 - computed at its first use
    return request


async def longest_hold(body: bytes) -> tuple[float, str]:
    """The longest time in milliseconds for which reading a body keeps everybody else waiting; and how it ended.

    CPU time of this thread: other programs of the machine do not count.
    """
    longest = 0.0
    outcome = "read"
    done = False
    last = time.thread_time()

    async def tick() -> None:
        nonlocal longest, last
        while not done:
            now = time.thread_time()
            longest, last = max(longest, now - last), now
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        await read(body, rewrite=True)
    except Refused as refused:
        outcome = str(refused.code)
    longest = max(longest, time.thread_time() - last)
    done = True
    await ticking
    return longest * 1e3, outcome


async def memory(body: bytes) -> float:
    """Peak memory as a multiple of the body, itself included."""
    tracemalloc.start()
    try:
        await read(body, rewrite=False)
    except Refused:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return 1.0 + peak / len(body)


async def main() -> int:
    reached = True
    for name, make in SHAPES.items():
        body = make(SIZE)
        hold, outcome = min([await longest_hold(body) for _ in range(3)])
        peak = await memory(body)
        title = name.replace(" ", "_").replace("-", "_")
        for figure in (
            Figure(f"body_{title}_hold", hold, "ms", "<=", MAX_HOLD_MS),
            Figure(f"body_{title}_memory", peak, "x", "<=", MAX_MEMORY),
        ):
            reached &= figure.reached
            print(f"{figure}  {'' if figure.reached else 'MISSED '}{outcome}", flush=True)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
