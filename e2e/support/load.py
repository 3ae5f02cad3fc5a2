"""Steady load on a service, every answer checked: short questions in both modes, and long streams that stay open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import httpx

from e2e.support.questions import ANSWERS, ENDPOINT, ROUTE, Answer, body, explain, failed, judge, read_event

LIMITS = httpx.Timeout(10.0, read=120.0)


def client() -> httpx.Client:
    return httpx.Client(timeout=LIMITS, trust_env=False)


def ask(http: httpx.Client, url: str, question: str, *, stream: bool, **more: Any) -> Answer:
    """One request to ``url`` (a service's base URL, without /v1), no retry; ``more`` goes into the request."""
    answer = Answer(question, stream, "refused", begun=time.monotonic())
    run(http, url, answer, **more)
    if answer.outcome == "ok":
        judge(answer)
    return answer


def run(http: httpx.Client, url: str, answer: Answer, **more: Any) -> None:
    """Send it and read it all into ``answer``, whose outcome is ``ok`` if it is complete, whatever it says."""
    wanted = body(answer.question, stream=answer.stream, **more)
    try:
        with http.stream("POST", f"{url}/v1/chat/completions", json=wanted) as response:
            answer.endpoint = response.headers.get(ENDPOINT, "")
            answer.route = response.headers.get(ROUTE, "")
            if response.status_code != 200:
                response.read()
                answer.detail = explain(response)
            elif answer.stream:
                _read_stream(response, answer)
            else:
                response.read()
                said = response.json()
                answer.text = said["choices"][0]["message"]["content"]
                answer.tokens = said["usage"]["completion_tokens"]
                answer.outcome = "ok"
    except httpx.HTTPError as error:
        failed(answer, error)
    answer.ended = time.monotonic()


def _read_stream(response: httpx.Response, answer: Answer) -> None:
    for line in response.iter_lines():
        answer.first = answer.first or time.monotonic()
        answer.outcome = "ok"
        if read_event(answer, line):
            return
    answer.outcome, answer.detail = "broken", "the stream ended without [DONE]"


class LongStream:
    """A stream of exactly ``tokens`` tokens in a thread of its own; `first` returns once it has begun."""

    def __init__(self, url: str, tokens: int, question: str = "How do I use range?") -> None:
        self.answer = Answer(question, True, "refused", begun=time.monotonic())
        self.tokens = tokens
        self._thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        self._thread.start()

    def _run(self, url: str) -> None:
        with client() as http:
            run(http, url, self.answer, max_tokens=self.tokens, ignore_eos=True)

    def first(self) -> Self:
        """Wait for its first event; raises AssertionError if it ended before."""
        while not self.answer.first:
            assert self._thread.is_alive(), f"the stream never began: {self.answer}"
            time.sleep(0.01)
        return self

    @property
    def open(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout: float = 120.0) -> Answer:
        """Its end."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"the stream did not end: {self.answer}"
        return self.answer


class Load(AbstractContextManager["Load"]):
    """``users`` threads that ask one question after the other, streaming and not by turns.

    ``retries``: how often a user repeats a request that failed before its first byte, as OpenAI's clients do by
    default; most tests do without.
    """

    def __init__(self, url: str, users: int = 3, retries: int = 0, pause: float = 0.15) -> None:
        self.answers: list[Answer] = []
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
        questions = list(ANSWERS)
        with client() as http:
            while not self._end.is_set():
                number += 1
                self.answers.append(self._ask(http, questions[number % len(questions)], stream=bool(number % 2)))
                self._end.wait(self._pause)

    def _ask(self, http: httpx.Client, question: str, stream: bool) -> Answer:
        answer = ask(http, self._url, question, stream=stream)
        for tries in range(2, self._retries + 2):
            if answer.outcome != "refused":
                break
            self._end.wait(0.5)
            begun, answer = answer.begun, ask(http, self._url, question, stream=stream)
            answer.tries, answer.begun = tries, begun
        return answer

    def more(self, count: int = 10) -> None:
        """Wait until ``count`` more requests have ended well, whatever became of others."""
        wanted = len(self.good) + count
        deadline = time.monotonic() + 90
        while len(self.good) < wanted:
            assert time.monotonic() < deadline, f"no answers any more; bad ones: {self.bad[-5:]}"
            time.sleep(0.05)

    def which(self, wanted: Callable[[Answer], bool]) -> list[Answer]:
        return [answer for answer in list(self.answers) if wanted(answer)]

    @property
    def good(self) -> list[Answer]:
        return self.which(lambda answer: answer.outcome == "ok")

    @property
    def bad(self) -> list[Answer]:
        return self.which(lambda answer: answer.outcome != "ok")
