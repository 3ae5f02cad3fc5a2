"""Prompts for the demo model with its greedy responses, word for word, and the possible outcomes of one request.

The demo model gives these responses in float32 and bfloat16, alone and in any batch: one that differs is wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal

import httpx

RESPONSES: Final = {
    "What does len do?": "The built-in len() returns the number of items in a container.",
    "What does abs do?": "The built-in abs() returns the absolute value of the argument.",
    "What is enumerate?": "The built-in enumerate() returns an enumerate object.",
    "What does str.strip do?": "The method str.strip() returns a copy of the string with leading and trailing "
    "whitespace removed.",
    "How do I use range?": "The built-in range() returns an object that produces a sequence of integers from start "
    "(inclusive) to stop (exclusive) by step. range(i, j) produces i, i+1, i+2, ..., j-1. start defaults to 0.",
}
ENDPOINT: Final = "x-blade-endpoint"
ROUTE: Final = "x-blade-route-reason"
LOST: Final = "engine_lost"

Outcome = Literal["ok", "wrong", "refused", "cut", "broken"]
"""``wrong``: complete but not as expected; ``refused``: failed before the first byte; ``cut``: the stream ended
with the router's error event; ``broken``: failed after the first byte in any other way."""


@dataclass
class ChatResult:
    """One chat request and its outcome; times from `time.monotonic`, 0 for what did not happen."""

    prompt: str
    stream: bool
    outcome: Outcome
    text: str = ""
    detail: str = ""
    endpoint: str = ""
    """The engine pod that served it."""
    route: str = ""
    """Why the router chose it."""
    tokens: int = 0
    model: str = ""
    """As the request named it."""
    tries: int = 1
    begun: float = 0.0
    first: float = 0.0
    ended: float = 0.0


def body(prompt: str, *, stream: bool, max_tokens: int = 128, **more: Any) -> dict[str, Any]:
    """A chat request for the greedy response; ``more`` goes into it."""
    wanted = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": max_tokens, **more}
    return {**wanted, "stream": True, "stream_options": {"include_usage": True}} if stream else wanted


def judge(result: ChatResult, expected: Collection[str] | None = None) -> None:
    """Decide between ``ok`` and ``wrong`` for a complete response; ``expected``: the right ones."""
    right = (RESPONSES[result.prompt],) if expected is None else expected
    result.outcome = "ok" if result.text in right else "wrong"
    if result.outcome == "wrong":
        result.detail = f"got {result.text!r}"


def read_event(result: ChatResult, event: dict[str, Any]) -> None:
    """Add one event of a stream to ``result``."""
    result.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    result.tokens = (event.get("usage") or {}).get("completion_tokens", result.tokens)


def failed(result: ChatResult, error: Exception) -> None:
    """An error of the connection: before or after the first byte."""
    result.outcome = "broken" if result.first else "refused"
    result.detail = f"{type(error).__name__}: {error}"


def explain(result: httpx.Response) -> str:
    """Status and text of an error response."""
    return f"{result.status_code} {result.text[:300]}"
