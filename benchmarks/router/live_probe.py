"""A probe as a kubelet's, in a process of its own: what else the benchmark does cannot delay it.

    python -m benchmarks.router.live_probe PORT

Asks for ``/live`` again and again, and prints the worst latency (ms) since the last line each time it reads a line.
"""

from __future__ import annotations

import asyncio
import http.client
import select
import sys
import time
from typing import Final, Self

PAUSE: Final = 0.002
"""Seconds between two probes."""
TIMEOUT: Final = 30.0


class LiveProbe:
    """The process, as the benchmark sees it; an async context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.router.live_probe", str(self._port), stdin=pipe, stdout=pipe
        )
        await self.worst()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._process.kill()
        await self._process.wait()

    async def worst(self) -> float:
        """The worst latency in ms since the last call; infinite when a probe failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return float(await self._process.stdout.readline())


def main() -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=TIMEOUT)
    worst = 0.0
    while True:
        begin = time.perf_counter()
        try:
            connection.request("GET", "/live")
            response = connection.getresponse()
            response.read()
            worst = max(worst, (time.perf_counter() - begin) * 1e3 if response.status == 200 else float("inf"))
        except (OSError, http.client.HTTPException):
            connection.close()
            worst = float("inf")
        if select.select([sys.stdin], [], [], PAUSE)[0]:
            if not sys.stdin.readline():
                return
            print(worst, flush=True)
            worst = 0.0


if __name__ == "__main__":
    main()
