"""Port-forwards: a port of this machine that leads to one of a pod, through the API server and the pod's kubelet.

Unlike the API server's proxy, it enters the pod's own network, which no NetworkPolicy keeps out, and no header of a
request is taken away on the way. Every connection is a WebSocket of its own, with the protocol of Kubernetes' streaming
API: the first byte of a message says which stream it belongs to, 0 for data and 1 for errors, and the first message of
each stream is the number of the port.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import aiohttp

from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.kinds import KINDS

PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PORT_BYTES: Final = 2
_CHUNK: Final = 64 * 1024


class PortForward:
    """A listening port of 127.0.0.1 that leads to ``port`` of a pod, from ``start`` to ``stop``."""

    def __init__(self, api: Api, namespace: str, pod: str, port: int) -> None:
        self._api = api
        self._path = f"{KINDS['Pod'].path(namespace, pod)}/portforward"
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.problem = ""
        """Why the last connection broke off, in the cluster's words; empty while none did."""

    async def start(self) -> int:
        """Listen; returns the port of this machine."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # by `stop`; asyncio prints a task that ends so
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            websocket = await self._api.websocket(self._path, {"ports": str(self._port)}, PROTOCOL, kind="Pod")
        except ApiError as error:
            hint = "; it takes the right to get and create pods/portforward" if error.status in (401, 403) else ""
            self.problem = f"no port-forward: {error}{hint}"
            return
        sending = asyncio.create_task(_send(reader, websocket))
        try:
            await self._receive(websocket, writer)
        except OSError:
            pass  # the client here has left
        finally:
            sending.cancel()
            await websocket.close()

    async def _receive(self, websocket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        named = set[int]()
        """Streams whose port came already."""
        async for message in websocket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            stream, data = message.data[0], message.data[1:]
            if stream not in named:
                named.add(stream)
                data = data[_PORT_BYTES:]
            if not data:
                continue
            if stream == _ERROR:
                self.problem = data.decode(errors="replace")
                return
            if stream == _DATA:
                writer.write(data)
                await writer.drain()


async def _send(reader: asyncio.StreamReader, websocket: aiohttp.ClientWebSocketResponse) -> None:
    """Send what the client here writes, until it ends or the WebSocket does."""
    with contextlib.suppress(OSError, aiohttp.ClientError):
        while data := await reader.read(_CHUNK):
            await websocket.send_bytes(bytes([_DATA]) + data)
        await websocket.close()
