"""Questions to the demo model and its greedy answers, word for word, and what can become of one request.

The demo model answers these the same in float32 and bfloat16, alone and in any batch: an answer that differs is wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

import httpx

ANSWERS: Final = {
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
"""``wrong``: complete but not the answer; ``refused``: failed before the first byte; ``cut``: the stream ended with the
router's error event; ``broken``: failed after the first byte in any other way."""


@dataclass
class Answer:
    """One request and what became of it; times from `time.monotonic`, 0 for what did not happen."""

    question: str
    stream: bool
    outcome: Outcome
    text: str = ""
    detail: str = ""
    endpoint: str = ""
    """The engine pod that answered."""
    route: str = ""
    """Why the router chose it."""
    tokens: int = 0
    tries: int = 1
    begun: float = 0.0
    first: float = 0.0
    ended: float = 0.0


def body(question: str, *, stream: bool, max_tokens: int = 128, **more: Any) -> dict[str, Any]:
    """A chat request for the greedy answer; ``more`` goes into it."""
    wanted = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": max_tokens, **more}
    return {**wanted, "stream": True, "stream_options": {"include_usage": True}} if stream else wanted


def judge(answer: Answer, expected: str | None = None) -> None:
    """Decide between ``ok`` and ``wrong`` for a complete answer."""
    wanted = ANSWERS[answer.question] if expected is None else expected
    answer.outcome = "ok" if answer.text == wanted else "wrong"
    if answer.outcome == "wrong":
        answer.detail = f"answered {answer.text!r}"


def read_event(answer: Answer, line: str) -> bool:
    """Take one line of a stream into ``answer``; True when it ended the stream."""
    if not line.startswith("data: "):
        return False
    data = line.removeprefix("data: ")
    if data == "[DONE]":
        return True
    event = json.loads(data)
    if error := event.get("error"):
        answer.outcome = "cut" if error.get("code") == LOST else "broken"
        answer.detail = str(error.get("message"))
        return True
    answer.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    answer.tokens = (event.get("usage") or {}).get("completion_tokens", answer.tokens)
    return False


def failed(answer: Answer, error: Exception) -> None:
    """An error of the connection: before or after the first byte."""
    answer.outcome = "broken" if answer.first else "refused"
    answer.detail = f"{type(error).__name__}: {error}"


def explain(answer: httpx.Response) -> str:
    """Status and words of an answer that is none."""
    return f"{answer.status_code} {answer.text[:300]}"
