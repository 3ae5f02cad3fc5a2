"""A Python process of ours that works on what strangers send, as the event loop sees it that asks it.

Messages on its standard input and output have their length before them: four bytes, little-endian. What it is asked may
end it at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final, Self

BROKEN: Final = (asyncio.IncompleteReadError, ConnectionError, RuntimeError)
"""Errors that an exited process causes; ``RuntimeError`` is uvloop's for a pipe that is closed already."""
_LENGTH_BYTES: Final = 4
_DRAINED_BYTES: Final = 1 << 16


class PipedProcess:
    """Of one running event loop. Who has killed it waits for :meth:`ended`, as a loop that ends before can close no
    pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    @classmethod
    async def start(cls, module: str, *arguments: str, limit: int, pass_fds: Sequence[int] = ()) -> Self:
        """``python -m module``, which gets no environment, as that has secrets. ``limit``: bytes of a reply that are
        read ahead. Raises ``OSError``."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=limit,
            pass_fds=pass_fds,
            env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """As far as is known."""
        return self._process.returncode is None

    async def write(self, payload: bytes) -> None:
        """Send a message. Raises :data:`BROKEN`."""
        self._stdin.write(len(payload).to_bytes(_LENGTH_BYTES, "little") + payload)
        await self._stdin.drain()

    async def read(self) -> bytes:
        """The next message. Raises :data:`BROKEN`."""
        length = int.from_bytes(await self._stdout.readexactly(_LENGTH_BYTES), "little")
        return await self._stdout.readexactly(length)

    async def exit_code(self, seconds: float) -> int | None:
        """Of a process whose pipes are closed; None: not within so many seconds. Not killed before: asyncio's own loop
        may then lose the code."""
        try:
            async with asyncio.timeout(seconds):
                return await self._process.wait()
        except TimeoutError:
            return None

    def kill(self) -> None:
        """At once, if it has not exited."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def ended(self) -> None:
        """Wait until the process and its pipes are gone."""
        await self._process.wait()
        with contextlib.suppress(*BROKEN):
            while await self._stdout.read(_DRAINED_BYTES):
                pass
