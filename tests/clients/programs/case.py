"""What each client's program needs: where the server is, and its cases, of which it prints one JSON line each.

It runs under the interpreter of a client's own environment and imports the standard library alone.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TypeVar

BASE_URL = os.environ.get("BASE_URL", "http://127.0.0.1:8080/v1")
ROOT_URL = BASE_URL.removesuffix("/v1")
"""Without ``/v1``, which some clients add themselves."""
MODEL = os.environ.get("MODEL", "demo-model")
API_KEY = os.environ.get("API_KEY", "none")
"""Any text will do, as the server asks for no keys."""

TURN = "<|im_start|>user\nWhat does len do?<|im_end|>\n<|im_start|>assistant\n"
"""A prompt for completions, which the demo model answers with a wide margin: a stream and a whole answer are alike."""

T = TypeVar("T")
Case = Callable[[], str | Awaitable[str]]
"""Asserts what a user would rely on; returns a short text to show."""


def until(wanted: Callable[[T], bool], ask: Callable[[], T], times: int = 8) -> T:
    """What ``ask`` returns, from the first time that it is as wanted.

    How many pieces a stream comes in is not the same each time: tokens that a server's process on a busy machine was
    late for are sent together, and the whole of a short answer is one piece then.

    Raises:
        AssertionError: it was not, so many times.
    """
    for _ in range(times):
        if wanted(found := ask()):
            return found
    raise AssertionError(f"not in {times} times: {found}")


async def until_awaited(wanted: Callable[[T], bool], ask: Callable[[], Awaitable[T]], times: int = 8) -> T:
    """As `until`, for what has to be awaited.

    Raises:
        AssertionError: it was not, so many times.
    """
    for _ in range(times):
        if wanted(found := await ask()):
            return found
    raise AssertionError(f"not in {times} times: {found}")


class Client:
    """A client library and its cases.

    ``name`` is its name in the table of docs/clients.md, ``distribution`` the package whose version is shown there.
    """

    def __init__(self, name: str, distribution: str) -> None:
        self.name = name
        self.distribution = distribution
        self.cases: dict[str, Case] = {}

    def case(self, name: str) -> Callable[[Case], Case]:
        """Add a case under a name: ``basic``, ``stream``, ``tools``, ``structured``, …"""

        def add(function: Case) -> Case:
            self.cases[name] = function
            return function

        return add

    def main(self) -> None:
        """Run the cases named on the command line, or all; exits with 1 if any failed."""
        failed = False
        for name in sys.argv[1:] or self.cases:
            started = time.perf_counter()
            shown = error = ""
            try:
                shown = _value(self.cases[name]())
            except Exception:  # the other cases still run
                error = traceback.format_exc()
                failed = True
            line = {"client": self.name, "version": version(self.distribution), "case": name, "shown": shown[:200]}
            print(json.dumps({**line, "error": error, "seconds": round(time.perf_counter() - started, 2)}), flush=True)
        sys.exit(failed)


def _value(found: str | Awaitable[str]) -> str:
    if inspect.isawaitable(found):
        import asyncio

        async def wait() -> str:
            return await found

        return asyncio.run(wait())
    return found
