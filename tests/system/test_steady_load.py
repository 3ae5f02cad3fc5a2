"""The load that is to find lost requests finds them: each way in which an answer can be wrong is a loss."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from e2e.support.completions import CHAT, COMPLETIONS, Altered, Answer, Failed, Loss, Question, Truncated, ask
from e2e.support.load import chat
from e2e.support.steady_load import STEADY, Kind, SteadyLoad, Tally

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
ASKED = Question(CHAT, "a b", 2)


def chunk(content: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    delta = {"role": "assistant", "content": ""} if content is None else {"content": content}
    event = {"id": "c1", "created": 1, "object": "chunk", "model": "m", "usage": None}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({**event, "choices": choices, **more}).encode() + b"\n\n"


FIRST, SECOND, LAST = chunk(), chunk("x"), chunk("y", "length")
END, DONE = chunk(choices=[], usage=USAGE), b"data: [DONE]\n\n"
RIGHT = Answer("xy", "length", 3, 2)


class Body(httpx.SyncByteStream):
    """Parts of a response, after which the connection breaks if it is to."""

    def __init__(self, *parts: bytes, breaks: bool = False) -> None:
        self.parts, self.breaks = parts, breaks

    def __iter__(self) -> Iterator[bytes]:
        yield from self.parts
        if self.breaks:
            raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")


def answered(body: Body, status: int = 200, question: Question = ASKED, stream: bool = True) -> tuple[Answer, str]:
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(status, stream=body))) as http:
        return ask(http, "http://router", question, stream=stream)


def test_a_whole_stream_is_an_answer_however_it_is_cut() -> None:
    whole = b": waiting\n\n" + FIRST + SECOND + LAST + END + DONE
    assert answered(Body(whole)) == (RIGHT, "c1")
    assert answered(Body(*(bytes([byte]) for byte in whole))) == (RIGHT, "c1")


WRONG: dict[str, tuple[type[Loss], Body]] = {
    "no byte": (Failed, Body(breaks=True)),
    "broken": (Truncated, Body(FIRST, SECOND, breaks=True)),
    "broken before [DONE]": (Truncated, Body(FIRST, SECOND, LAST, END, breaks=True)),
    "ended within an event": (Truncated, Body(FIRST, SECOND[:20])),
    "ended without [DONE]": (Truncated, Body(FIRST, SECOND, LAST, END)),
    "an error event": (Truncated, Body(FIRST, b'data: {"error": {"code": "engine_lost"}}\n\n')),
    "without an end": (Altered, Body(FIRST, SECOND, DONE)),
    "without usage": (Altered, Body(FIRST, SECOND, LAST, DONE)),
    "usage twice": (Altered, Body(FIRST, SECOND, LAST, END, END, DONE)),
    "two beginnings": (Altered, Body(FIRST, SECOND, FIRST, LAST, END, DONE)),
    "two ids": (Altered, Body(FIRST, chunk("x", id="c2"), LAST, END, DONE)),
    "text after its end": (Altered, Body(FIRST, LAST, SECOND, END, DONE)),
    "more after [DONE]": (Altered, Body(FIRST, SECOND, LAST, END, DONE, SECOND)),
    "token ids": (Altered, Body(FIRST, b": 97,98\n\n", SECOND, LAST, END, DONE)),
    "no event": (Altered, Body(FIRST, b"x\n\n", SECOND, LAST, END, DONE)),
    "no JSON": (Altered, Body(FIRST, b"data: {\n\n", SECOND, LAST, END, DONE)),
}


@pytest.mark.parametrize("name", WRONG)
def test_anything_else_is_a_loss(name: str) -> None:
    kind, body = WRONG[name]
    with pytest.raises(Loss) as loss:
        answered(body)
    assert loss.type is kind


def test_unary_answers_are_read_as_strictly() -> None:
    question = Question(COMPLETIONS, "a b", 2)
    whole = {"id": "c1", "choices": [{"text": "xy", "finish_reason": "length"}], "usage": USAGE}
    assert answered(Body(json.dumps(whole).encode()), question=question, stream=False) == (RIGHT, "c1")
    with pytest.raises(Altered):
        answered(Body(b'{"choices": []}'), question=question, stream=False)
    with pytest.raises(Truncated):
        answered(Body(b'{"choices', breaks=True), question=question, stream=False)
    with pytest.raises(Failed, match="503"):
        answered(Body(b"no engine"), 503, question=question, stream=False)


@contextmanager
def saying(text: str) -> Iterator[str]:
    """A server with one completion, of one id, for everybody."""
    body = json.dumps({"id": "c1", "choices": [{"text": text, "finish_reason": "stop"}], "usage": USAGE}).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_another_text_and_the_same_id_twice_are_seen() -> None:
    question = Question(COMPLETIONS, "a b", 2)
    for text, right in (("xz", 0), ("xy", 1)):
        with saying(text) as url:
            load = SteadyLoad(url, [question], users=[Kind("unary", 0.01, streams=0.0)])
            load.expect({question: Answer("xy", "stop", 3, 2)})
            with load:
                load.more(3)
        tally = load.tally()
        assert tally == Tally(tally.requests, 0, 0, 0, tally.requests - right)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (Body(FIRST, SECOND, LAST, END, DONE), "ok"),
        (Body(FIRST, b'data: {"error": {"code": "engine_lost"}}\n\n'), "cut"),
        (Body(FIRST, b'data: {"error": {"code": "other"}}\n\n'), "broken"),
        (Body(FIRST, SECOND, LAST, END), "broken"),
        (Body(FIRST, b": 97\n\n", LAST, END, DONE), "broken"),
        (Body(FIRST, breaks=True), "broken"),
        (Body(breaks=True), "refused"),
    ],
)
def test_chats_are_read_as_strictly(body: Body, outcome: str) -> None:
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=body))) as http:
        result = chat(http, "http://router", "a b", stream=True, expected=["xy"])
    assert result.outcome == outcome, result
    assert (result.first > 0) == (outcome != "refused")


def test_nobody_listening_is_a_failure_of_every_request() -> None:
    load = SteadyLoad("http://127.0.0.1:1", [ASKED], users=[STEADY])
    load.expect({ASKED: RIGHT})
    with load:
        load.more(3)
    tally = load.tally()
    assert tally == Tally(tally.requests, tally.streams, tally.requests, 0, 0)
    with pytest.raises(Failed):
        load.learn()
