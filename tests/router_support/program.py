"""The router as a program, under a limit of open files."""

import asyncio
import contextlib
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator

from router_support.serving import TEST_SECONDS

DESCRIPTORS = 256

# By a shell: what a `preexec_fn` runs is Python in a fork of a process with many threads, which may crash.
_LIMITED = 'ulimit -Sn "$1" && ulimit -Hn "$2" && shift 2 && exec "$@"'


async def ports_of(log: asyncio.StreamReader) -> tuple[int, int]:
    """The public port and the admin port of a router that is starting, as its log says."""
    port = admin = 0
    said = ""
    while not (port and admin):
        line = (await log.readline()).decode()
        assert line, f"the router ended before it listened:\n{said}"
        said += line
        if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
            port = int(found[1])
        if found := re.search(r"admin port: http://127\.0\.0\.1:(\d+)", line):
            admin = int(found[1])
    return port, admin


@contextlib.asynccontextmanager
async def running(*flags: str, soft: int = DESCRIPTORS, hard: int = DESCRIPTORS) -> AsyncIterator[tuple[int, int, int]]:
    """A router as a process under a limit of open files: its ports, the public one first, and process id."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", _LIMITED, "sh", str(soft), str(hard)),
        *(sys.executable, "-m", "blade_router.app", "--port", "0", "--admin_port", "0", *flags),
        stderr=PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TEST_SECONDS):
            port, admin = await ports_of(process.stderr)
            draining = asyncio.create_task(process.stderr.read())
            yield port, admin, process.pid
            draining.cancel()
    finally:
        process.terminate()
        await process.wait()
