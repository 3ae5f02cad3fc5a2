"""Steady load on a service, every response checked: short prompts in both modes, and long streams that stay open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import httpx

from e2e.support.completions import Loss, Truncated, events
from e2e.support.prompts import ENDPOINT, LOST, RESPONSES, ROUTE, ChatResult, body, explain, failed, judge, read_event

Models = Mapping[str, Mapping[str, Collection[str]]]

LIMITS = httpx.Timeout(10.0, read=120.0)


def client() -> httpx.Client:
    return httpx.Client(timeout=LIMITS, trust_env=False)


def chat(
    http: httpx.Client, url: str, prompt: str, *, stream: bool, expected: Collection[str] | None = None, **more: Any
) -> ChatResult:
    """One request to ``url`` (a service's base URL, without /v1), no retry; ``more`` goes into the request.

    ``expected``: the right responses; the demo model's by default.
    """
    result = ChatResult(prompt, stream, "refused", begun=time.monotonic())
    run(http, url, result, **more)
    if result.outcome == "ok":
        judge(result, expected)
    return result


def run(http: httpx.Client, url: str, result: ChatResult, **more: Any) -> None:
    """Send the request and read its response into ``result``; the outcome is ``ok`` if it is complete, right or not."""
    payload = body(result.prompt, stream=result.stream, **more)
    try:
        with http.stream("POST", f"{url}/v1/chat/completions", json=payload) as response:
            result.endpoint = response.headers.get(ENDPOINT, "")
            result.route = response.headers.get(ROUTE, "")
            if response.status_code != 200:
                response.read()
                result.detail = explain(response)
            elif result.stream:
                _read_stream(response, result)
            else:
                response.read()
                completion = response.json()
                result.text = completion["choices"][0]["message"]["content"]
                result.tokens = completion["usage"]["completion_tokens"]
                result.outcome = "ok"
    except httpx.HTTPError as error:
        failed(result, error)
    result.ended = time.monotonic()


def _read_stream(response: httpx.Response, result: ChatResult) -> None:
    try:
        for event in events(_timed(response.iter_raw(), result)):
            read_event(result, event)
        result.outcome = "ok"
    except Loss as loss:
        result.outcome = "cut" if isinstance(loss, Truncated) and loss.code == LOST else "broken"
        result.detail = str(loss)


def _timed(chunks: Iterable[bytes], result: ChatResult) -> Iterator[bytes]:
    for chunk in chunks:
        result.first = result.first or time.monotonic()
        yield chunk


class LongStream:
    """A stream of exactly ``tokens`` tokens in a thread of its own; `first` returns once it has begun."""

    def __init__(self, url: str, tokens: int, prompt: str = "How do I use range?") -> None:
        self.result = ChatResult(prompt, True, "refused", begun=time.monotonic())
        self.tokens = tokens
        self._thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        self._thread.start()

    def _run(self, url: str) -> None:
        with client() as http:
            run(http, url, self.result, max_tokens=self.tokens, ignore_eos=True)

    def first(self) -> Self:
        """Wait for its first event; raises AssertionError if it ended before."""
        while not self.result.first:
            assert self._thread.is_alive(), f"the stream never began: {self.result}"
            time.sleep(0.01)
        return self

    @property
    def open(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout: float = 120.0) -> ChatResult:
        """Wait for the end of the stream."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"the stream did not end: {self.result}"
        return self.result


class Load(AbstractContextManager["Load"]):
    """``users`` threads that send one prompt after the other, streamed and not by turns.

    ``retries``: how often a user repeats a request that failed before its first byte, as OpenAI's clients do by
    default; most tests do without.

    Attributes:
        models: the ``model`` of requests, by turns ("" for none) → prompt → the right responses. It may be replaced
            while the load runs.
    """

    def __init__(self, url: str, users: int = 3, retries: int = 0, pause: float = 0.15) -> None:
        self.results: list[ChatResult] = []
        self.models: Models = {"": {prompt: (response,) for prompt, response in RESPONSES.items()}}
        self._url, self._retries, self._pause = url, retries, pause
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(users)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.more(len(self._threads))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(150)

    def _run(self, number: int) -> None:
        prompts = list(RESPONSES)
        with client() as http:
            while not self._end.is_set():
                number += 1
                self.results.append(self._chat(http, number, prompts[number % len(prompts)], stream=bool(number % 2)))
                self._end.wait(self._pause)

    def _chat(self, http: httpx.Client, number: int, prompt: str, stream: bool) -> ChatResult:
        models = self.models
        model = list(models)[number % len(models)]
        fields: dict[str, Any] = {"stream": stream, "expected": models[model][prompt]}
        fields |= {"model": model} if model else {}
        result = chat(http, self._url, prompt, **fields)
        for tries in range(2, self._retries + 2):
            if result.outcome != "refused":
                break
            self._end.wait(0.5)
            begun, result = result.begun, chat(http, self._url, prompt, **fields)
            result.tries, result.begun = tries, begun
        result.model = model
        return result

    def more(self, count: int = 10) -> None:
        """Wait until ``count`` more requests have ended well, whatever became of others."""
        wanted = len(self.good) + count
        deadline = time.monotonic() + 90
        while len(self.good) < wanted:
            assert time.monotonic() < deadline, f"no responses any more; bad ones: {self.bad[-5:]}"
            time.sleep(0.05)

    def which(self, wanted: Callable[[ChatResult], bool]) -> list[ChatResult]:
        return [result for result in list(self.results) if wanted(result)]

    @property
    def good(self) -> list[ChatResult]:
        return self.which(lambda result: result.outcome == "ok")

    @property
    def bad(self) -> list[ChatResult]:
        return self.which(lambda result: result.outcome != "ok")
