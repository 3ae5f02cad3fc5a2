"""Completions read strictly: what is not a complete answer in every byte is a `Loss`, of one of three kinds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import httpx

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"


@dataclass(frozen=True)
class Question:
    """A greedy request, which has one right answer; as many tokens as ``max_tokens`` with ``ignore_eos``."""

    path: str
    prompt: str
    max_tokens: int
    ignore_eos: bool = False
    model: str = ""

    def body(self, *, stream: bool) -> dict[str, Any]:
        chat = self.path == CHAT
        asked = {"messages": [{"role": "user", "content": self.prompt}]} if chat else {"prompt": self.prompt}
        wanted = {**asked, "temperature": 0, "max_tokens": self.max_tokens, "ignore_eos": self.ignore_eos}
        wanted |= {"model": self.model} if self.model else {}
        return {**wanted, "stream": True, "stream_options": {"include_usage": True}} if stream else wanted


class Answer(NamedTuple):
    """All of an answer that depends on the question alone."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class Loss(Exception):
    """A client did not get what it asked for."""


class Failed(Loss):
    """Nothing of an answer came: an error, or a connection that broke."""


class Truncated(Loss):
    """An answer that had begun ended too early: its connection broke, or an error event or nothing ended it.

    ``code``: the error event's.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Altered(Loss):
    """A complete answer is another one than the question has, or no well-formed one, or came twice."""


def ask(http: httpx.Client, url: str, question: Question, *, stream: bool, pause: float = 0.0) -> tuple[Answer, str]:
    """One request to ``url`` (without /v1), never repeated: the answer and its id.

    ``pause``: seconds before each read of a stream, of a client that is slow.

    Raises:
        Loss: whatever else came of it.
    """
    begun = False
    try:
        with http.stream("POST", url + question.path, json=question.body(stream=stream)) as response:
            if response.status_code != 200:
                response.read()
                raise Failed(f"{response.status_code} {response.text[:300]}")
            if not stream:
                begun = True
                return _whole(question, response.read())
            chunks = response.iter_raw()
            first = next(chunks, b"")
            begun = True
            return _streamed(question, _paced(first, chunks, pause))
    except httpx.HTTPError as error:
        raise (Truncated if begun else Failed)(f"{type(error).__name__}: {error}") from error


def _paced(first: bytes, rest: Iterable[bytes], pause: float) -> Iterator[bytes]:
    yield first
    for chunk in rest:
        yield chunk
        if pause:
            time.sleep(pause)


def events(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The events of a stream that ends as it should. Comments may come before the first: heartbeats of a long wait.

    Raises:
        Truncated: it ends before ``[DONE]``, or in an error event.
        Altered: bytes that belong to no event.
    """
    rest, begun, done = b"", False, False
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        for event in whole:
            if event.startswith(b":") and not begun:
                continue
            begun = True
            if done or not event.startswith(b"data: ") or b"\n" in event:
                raise Altered(f"no event, or one too many: {event!r}")
            done = event == b"data: [DONE]"
            if not done:
                yield _event(event.removeprefix(b"data: "))
    if rest or not done:
        raise Truncated(f"the stream ended without [DONE], with {rest!r}")


def _event(data: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(data)
    except ValueError:
        raise Altered(f"an event that is no JSON: {data!r}") from None
    if "error" in event:
        raise Truncated(f"an error event: {event['error']}", str(event["error"].get("code")))
    return event


def _streamed(question: Question, chunks: Iterable[bytes]) -> tuple[Answer, str]:
    text, roles = "", 0
    reasons: list[str] = []
    heads: set[tuple[Any, ...]] = set()
    usage: dict[str, int] | None = None
    for event in events(chunks):
        heads.add(tuple(event[name] for name in ("id", "created", "object", "model")))
        if usage is not None or (reasons and event["choices"]):
            raise Altered(f"an event after the last one: {event}")
        for choice in event["choices"]:
            delta = choice["delta"] if question.path == CHAT else {"content": choice["text"]}
            text += delta.get("content") or ""
            roles += "role" in delta
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        usage = event.get("usage")
    if len(heads) != 1 or roles != (question.path == CHAT) or len(reasons) != 1 or usage is None:
        raise Altered(f"not one stream: {len(heads)} heads, {roles} roles, {reasons}, usage {usage}")
    [(identity, *_)] = heads
    return Answer(text, reasons[0], usage["prompt_tokens"], usage["completion_tokens"]), identity


def _whole(question: Question, body: bytes) -> tuple[Answer, str]:
    try:
        found = json.loads(body)
        [choice] = found["choices"]
        text = choice["message"]["content"] if question.path == CHAT else choice["text"]
        usage = found["usage"]
        answer = Answer(text, choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"])
        return answer, found["id"]
    except (ValueError, KeyError, TypeError) as error:
        raise Altered(f"no completion ({error!r}): {body[:300]!r}") from None
