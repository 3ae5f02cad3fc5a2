"""Turns for work that holds the event loop: one piece of it in each of the loop's turns, however many requests wait.

Each piece is short, but twenty requests whose bodies are complete at the same moment would do theirs one after the
other before anything else: a liveness probe would wait for all of them.
"""

import asyncio
from collections import deque


class Turns:
    """Lets those that wait go on in their order, each in a turn of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait for a turn of the event loop in which nobody else who calls this goes on."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # another one than before: tests have many
            self._loop = loop
            self._waiting.clear()
        future = loop.create_future()
        self._waiting.append(future)
        if len(self._waiting) == 1:
            loop.call_soon(self._pass_on, loop)
        await future

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the first go on in the loop's next turn, and the one behind it in the turn after that."""
        if loop is not self._loop:
            return
        future = self._waiting.popleft()
        if not future.done():  # else its request was cancelled
            future.set_result(None)
        if self._waiting:
            loop.call_soon(self._pass_on, loop)


large_bodies = Turns()
"""Of the steps in which large bodies are read."""
