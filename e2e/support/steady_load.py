"""Steady load of which not one request may be lost: every answer is compared with the one of before.

Clients are of several kinds, as real ones are: some keep their connection and ask at once again, or after a while,
some make a connection for each request, and some read so slowly that their stream waits for them. None repeats a
request: a connection that breaks is a request that failed.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self

import httpx

from e2e.support.completions import CHAT, COMPLETIONS, Altered, Answer, Failed, Loss, Question, Truncated, ask

LIMITS: Final = httpx.Timeout(10.0, read=120.0)
RECEIVE_BUFFER: Final = 4096
"""Bytes that a slow reader's kernel takes, so that its pauses are felt at the other end."""


@dataclass(frozen=True)
class Kind:
    """How a client behaves."""

    name: str
    think: float
    """Seconds between two requests, at most; at random."""
    keeps: bool = True
    """It keeps its connection."""
    streams: float = 0.6
    """Share of its requests that stream."""
    read_pause: float = 0.0
    """Seconds before each read of a stream."""


STEADY: Final = Kind("steady", 0.05)
THINKING: Final = Kind("thinking", 2.5)
FRESH: Final = Kind("fresh", 0.1, keeps=False)
SLOW: Final = Kind("slow", 0.2, streams=1.0, read_pause=0.02)
USERS: Final = (STEADY, STEADY, STEADY, THINKING, THINKING, FRESH, FRESH, SLOW)


def questions(
    seed: int = 0, *, lengths: Sequence[int] = (1, 8, 30, 120, 300), models: Sequence[str] = ("",)
) -> list[Question]:
    """Prompts from a few words to a hundred, for both routes, answers of mixed ``lengths`` in tokens."""
    rng = random.Random(seed)
    words = ("what", "does", "len", "do", "range", "sorted", "a list", "open", "def f(x):", "return", "the", "items")
    made = []
    for number, length in enumerate(list(lengths) * 4):
        prompt = " ".join(rng.choices(words, k=rng.choice((3, 10, 30, 100))))
        path = CHAT if number % 2 else COMPLETIONS
        made.append(Question(path, f"{number} {prompt}", length, bool(number % 4 < 3), models[number % len(models)]))
    return made


@dataclass(frozen=True)
class Lost:
    """One request that was lost."""

    what: str
    detail: str
    question: Question
    stream: bool
    client: str
    at: float
    """`time.time`."""


class Tally(NamedTuple):
    """How many requests ended, how many of them were streams, and how many were lost in each way."""

    requests: int
    streams: int
    failed: int
    truncated: int
    altered: int

    def since(self, before: Tally) -> Tally:
        return Tally(*(now - then for now, then in zip(self, before, strict=True)))

    def plus(self, other: Tally) -> Tally:
        return Tally(*map(sum, zip(self, other, strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.requests:6} requests ({self.streams:6} streams): {self.failed} failed, {self.truncated} truncated, "
            f"{self.altered} altered"
        )


class SteadyLoad(AbstractContextManager["SteadyLoad"]):
    """Clients that ask without end while the context is open.

    Attributes:
        requests: how many ended, by ``stream`` and ``unary``.
        lost: the requests that failed, or whose answer was truncated or altered.
    """

    def __init__(
        self, url: str, asked: Sequence[Question] | None = None, users: Sequence[Kind] = USERS, seed: int = 0
    ) -> None:
        self.requests: Counter[str] = Counter()
        self.lost: list[Lost] = []
        self._url, self._seed = url, seed
        self._questions = list(questions() if asked is None else asked)
        self._right: dict[Question, Answer] = {}
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, kind), daemon=True) for number, kind in enumerate(users)
        ]

    def learn(self) -> Self:
        """Ask each question in peace, streamed and not: these answers are the right ones.

        Raises:
            Loss: an answer was none, or the two differ.
        """
        with _client(STEADY) as http, ThreadPoolExecutor(len(self._threads)) as pool:

            def answer(question: Question) -> Answer:
                answers = {ask(http, self._url, question, stream=stream)[0] for stream in (False, True)}
                if len(answers) > 1:
                    raise Altered(f"{question} has two answers: {answers}")
                return answers.pop()

            self._right = dict(zip(self._questions, pool.map(answer, self._questions), strict=True))
        return self

    def expect(self, answers: Mapping[Question, Answer]) -> None:
        """The right answers, where they are known."""
        self._right = dict(answers)

    def __enter__(self) -> Self:
        if not self._right:
            self.learn()
        for thread in self._threads:
            thread.start()
        self.more()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(150)

    def more(self, count: int = 20) -> None:
        """Wait until ``count`` more requests have ended, whatever became of them."""
        wanted = self.requests.total() + count
        deadline = time.monotonic() + 90
        while self.requests.total() < wanted:
            assert time.monotonic() < deadline, f"no answers any more; lost: {self.lost[-5:]}"
            time.sleep(0.05)

    def check(self) -> None:
        """Raises AssertionError, with the first of them, if requests were lost."""
        if self.lost:
            shown = "\n".join(map(str, self.lost[:12]))
            raise AssertionError(f"{self.tally()}\n{shown}")

    def tally(self) -> Tally:
        """What has ended until now."""
        lost = Counter(each.what for each in list(self.lost))
        counts = (lost[kind.__name__] for kind in (Failed, Truncated, Altered))
        return Tally(self.requests.total(), self.requests["stream"], *counts)

    def _run(self, number: int, kind: Kind) -> None:
        rng = random.Random(f"{self._seed} {number}")
        long = sorted(self._questions, key=lambda question: question.max_tokens)[-8:]
        with _client(kind) as http:
            while not self._end.is_set():
                asked = rng.choice(long if kind.read_pause else self._questions)
                self._ask(http, kind, asked, stream=rng.random() < kind.streams)
                self._end.wait(kind.think * rng.random())

    def _ask(self, http: httpx.Client, kind: Kind, question: Question, *, stream: bool) -> None:
        try:
            answer, identity = ask(http, self._url, question, stream=stream, pause=kind.read_pause)
            with self._lock:
                twice = identity in self._seen
                self._seen.add(identity)
            if twice:
                raise Altered(f"two answers have the id {identity}")
            if answer != self._right[question]:
                raise Altered(f"{answer} instead of {self._right[question]}")
        except Loss as loss:
            self.lost.append(Lost(type(loss).__name__, str(loss), question, stream, kind.name, time.time()))
        finally:
            with self._lock:
                self.requests["stream" if stream else "unary"] += 1


def _client(kind: Kind) -> httpx.Client:
    options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)] if kind.read_pause else []
    limits = httpx.Limits() if kind.keeps else httpx.Limits(max_keepalive_connections=0)
    transport = httpx.HTTPTransport(verify=False, limits=limits, socket_options=options)
    return httpx.Client(timeout=LIMITS, trust_env=False, transport=transport)
