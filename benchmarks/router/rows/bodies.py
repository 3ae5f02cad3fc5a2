"""How long a liveness probe waits while the largest bodies come in, in every shape that is expensive to read."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Final

from benchmarks.figures import QUICK, Figure
from benchmarks.router.bodies import SHAPES, SIZE
from benchmarks.router.engines import fleet
from benchmarks.router.live_probe import LiveProbe
from benchmarks.router.load import Wrong
from benchmarks.router.rounds import Context
from benchmarks.router.routers import ours, started
from blade_protocol import paths

MAX_MS: Final = 100.0
LOADS: Final = {"16mib": (SIZE, 4), "1mib": (1 << 20, 24)}
"""Size of a body, and the uploads at the same time: a body of 1 MiB is the largest that is parsed in one go."""
ROUNDS: Final = 1 if QUICK else 2
STATUSES: Final = {200, 400, 413, 422, 502, 503}
"""What a body may come to; the mock engines hang up on some."""


async def run(context: Context) -> list[Figure]:
    async with fleet() as engines, started(ours("--max_connections_per_address", "0"), engines) as router:
        async with LiveProbe(router.port) as probe:
            await asyncio.sleep(1.0)
            figures = [Figure("bodies_live_in_calm", await probe.worst(), "ms")]
            for load, (size, uploads) in LOADS.items():
                worst: dict[str, float] = {}
                statuses: Counter[int] = Counter()
                for shape, make in SHAPES.items():
                    body = make(size)
                    await probe.worst()
                    for _ in range(ROUNDS):
                        statuses.update(await asyncio.gather(*(_upload(router.port, body) for _ in range(uploads))))
                    worst[shape] = await probe.worst()
                slowest = sorted(worst, key=lambda shape: -worst[shape])
                print(f"  {load}: statuses {dict(statuses)}; worst", end=" ")
                print(*(f"{shape} {worst[shape]:.1f} ms" for shape in slowest[:6]), sep=", ")
                if set(statuses) - STATUSES:
                    raise Wrong(f"wrong responses: {dict(statuses)}")
                figures.append(Figure(f"bodies_live_worst_{load}", worst[slowest[0]], "ms", "<=", MAX_MS))
    return figures


async def _upload(port: int, body: bytes) -> int:
    """Send a body; returns the status of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {paths.CHAT_COMPLETIONS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):  # it may be refused before its end
            writer.write(body)
            await writer.drain()
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()
