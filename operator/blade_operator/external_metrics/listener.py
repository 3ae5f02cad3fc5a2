"""TLS connections of the API server's front proxy: who has no client certificate of its authority never gets as far as
HTTP.

A stranger can open connections, and let them rest before the handshake. They are few, short, not too many in a second,
and those that have rested longest go first, so that the API server finds a place.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from types import TracebackType
from typing import Final

from aiohttp import web

_log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 128
"""Open ones, all with a client certificate."""
MOST_HANDSHAKES: Final = 64
"""Connections that have not shown a certificate yet."""
BETWEEN_SECONDS: Final = 0.01
"""From one connection to the next: a handshake, a stranger's too, takes a millisecond of the loop that LLMServices are
reconciled in. The API server opens few connections and keeps them."""
HANDSHAKE_SECONDS: Final = 5.0
SHUTDOWN_SECONDS: Final = 1.0
ENDING_SECONDS: Final = 0.5
"""For the request of a connection that is to end."""
_PAUSE = 0.2
"""Seconds without accepting while the process has no file descriptor left."""


def tls_context(folder: Path, authorities: str) -> ssl.SSLContext:
    """TLS 1.2 or newer with the certificate in ``folder`` (``tls.crt`` and ``tls.key``, as in a Secret of Kubernetes),
    for clients whose certificate one of ``authorities`` (PEM) signed, and for nobody else.

    Raises:
        OSError: a file cannot be read, or is no certificate or key (ssl.SSLError is an OSError).
    """
    certificate = (folder / "tls.crt").resolve()  # the files of one Secret are replaced together, behind a link
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, certificate.with_name("tls.key"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate authority is one, as for the API server
    context.load_verify_locations(cadata=authorities)
    return context


class Listener:
    """Accepts connections for ``server`` while `run` runs, once there is a ``context``. A context manager."""

    def __init__(self, server: web.Server, port: int, host: str | None = None) -> None:
        """Bind the port (0: a free one) of ``host`` (default: every address).

        Raises:
            OSError: the port is taken.
        """
        self._server = server
        self._context: ssl.SSLContext | None = None
        self._usable = asyncio.Event()
        dual = host is None and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in (host or "") else socket.AF_INET
        self._socket = socket.create_server(
            (host or ("::" if dual else ""), port), family=family, dualstack_ipv6=dual, backlog=MOST_CONNECTIONS
        )
        self._socket.setblocking(False)
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """The oldest first."""
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that is bound."""
        port: int = self._socket.getsockname()[1]
        return port

    def use(self, context: ssl.SSLContext) -> None:
        """Use another certificate or authority from now on; connections of before end with their request."""
        for connection in self._server.connections:
            task = asyncio.create_task(connection.shutdown(ENDING_SECONDS))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._context = context
        self._usable.set()

    async def run(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        await self._usable.wait()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._socket)
                except OSError as error:
                    _log.warning("external metrics: cannot accept a connection: %s", error)
                    await asyncio.sleep(_PAUSE)
                    continue
                self._admit(connection)
                await asyncio.sleep(BETWEEN_SECONDS)
        finally:
            for task in (*self._handshakes, *self._ending):
                task.cancel()

    def _admit(self, connection: socket.socket) -> None:
        if len(self._server.connections) >= MOST_CONNECTIONS:
            connection.close()
            return
        while len(self._handshakes) >= MOST_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        task = asyncio.create_task(self._shake_hands(connection))
        self._handshakes[task] = None
        task.add_done_callback(lambda ended: self._handshakes.pop(ended, None))

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._server,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:  # ssl.SSLError too: no certificate, another authority's, or none in time
            _log.debug("external metrics: a connection was refused: %s", error)

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
