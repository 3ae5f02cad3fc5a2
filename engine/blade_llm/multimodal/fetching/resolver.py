"""Names to addresses, in threads of their own: a slow name server must not hold up what else runs in threads."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


class Resolver(Protocol):
    async def resolve(self, host: str, port: int) -> list[str]:
        """Addresses of ``host``, the best first. Raises OSError where there are none."""

    def close(self) -> None: ...


class SystemResolver:
    """``getaddrinfo``: the hosts file, search domains and name servers of this machine.

    A lookup cannot be cancelled: its thread stays until the name servers' own timeouts, also after its caller gave up.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="media-dns")

    async def resolve(self, host: str, port: int) -> list[str]:
        found = await asyncio.get_running_loop().run_in_executor(self._threads, _getaddrinfo, host, port)
        return list(dict.fromkeys(found))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _getaddrinfo(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that the codec takes for too long
        raise OSError(f"no such name: {error}") from error
    return [str(address[4][0]) for address in found]
