"""Requests to the Kubernetes API from inside a pod: a list, and a streaming watch.

Two kinds of GET are all a router needs, so this uses the router's own HTTP connection. The official client would add
20 MB to every router process, aiohttp alone 10 MB; this adds the 1 MB that TLS takes. Token and certificate authority
are read from the ServiceAccount's folder for each request, since Kubernetes rotates both while the pod runs.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec

from blade_router.config.parsing import ConfigError
from blade_router.http.errors import header_of
from blade_router.http.upstream.connect import connect
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import UpstreamError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a pod's token, the API's certificate authority and the namespace."""
CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 15.0
"""Until the next bytes of a list, or the head of a watch."""


class ApiError(Exception):
    """The API server is unreachable or refused a request. ``status`` is HTTP's, 0 without a response."""

    def __init__(self, message: str, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """``Retry-After`` in seconds."""


class Status(msgspec.Struct):
    """The Kubernetes ``Status`` object of an error."""

    message: str = ""
    code: int = 0


_decode_status = msgspec.json.Decoder(Status).decode


@dataclass(frozen=True)
class Cluster:
    """The API server of the cluster this process runs in.

    Args:
        folder: the mounted ServiceAccount.
    """

    host: str
    port: int
    folder: Path = SERVICE_ACCOUNT

    def namespace(self) -> str:
        """The pod's own namespace.

        Raises:
            ConfigError: no ServiceAccount is mounted.
        """
        try:
            return (self.folder / "namespace").read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"{self.folder}/namespace: {error.strerror}; following Kubernetes needs the pod's ServiceAccount "
                "(automountServiceAccountToken: true)"
            ) from None

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """Send a GET and return the body of a 200.

        Raises:
            ApiError: anything else.
        """
        connection = await self.open(path, query)
        try:
            return await _read_all(connection)
        finally:
            close(connection)

    async def open(self, path: str, query: Mapping[str, str]) -> Connection:
        """Send a GET and wait for the head of a 200. The caller reads the body and closes the connection.

        Raises:
            ApiError: no response, or another status.
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        try:
            token = (self.folder / "token").read_text().strip()
            # Not create_default_context: its strictness refuses the authorities of some older clusters.
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.load_verify_locations(self.folder / "ca.crt")
        except OSError as error:
            raise ApiError(f"{self.folder}: {error}") from None
        head = (
            f"GET {quote(path)}?{urlencode(query)} HTTP/1.1\r\nhost: {host}:{self.port}\r\n"
            f"authorization: Bearer {token}\r\naccept: application/json\r\nuser-agent: blade_router\r\n"
            "connection: close\r\n\r\n"
        )
        try:
            connection = await connect(self.host, self.port, CONNECT_SECONDS, tls)
        except UpstreamError as error:
            raise ApiError(str(error)) from None
        try:
            connection.send(head.encode("latin-1"), b"")
            async with asyncio.timeout(RESPONSE_SECONDS):
                await connection.response()
            if connection.status != 200:
                raise await _error_from(connection)
        except BaseException as error:
            close(connection)
            if isinstance(error, UpstreamError | TimeoutError):
                raise ApiError(f"{self.host}:{self.port}: {str(error) or 'no response'}") from None
            raise
        return connection


async def lines(connection: Connection, idle_timeout: float) -> AsyncIterator[bytes]:
    """The lines of a streaming response, until the server ends it.

    Raises:
        ApiError: it broke, or brought nothing for ``idle_timeout`` seconds.
    """
    rest = b""
    while chunk := await _read(connection, idle_timeout):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line


def close(connection: Connection) -> None:
    """Close a connection, whether its response is complete or not."""
    connection.abort(ConnectionAbortedError())


async def _error_from(connection: Connection) -> ApiError:
    try:
        message = _decode_status(await _read_all(connection)).message
    except (ApiError, msgspec.DecodeError):
        message = ""
    wait = header_of(connection.headers, b"retry-after")
    status = connection.status
    return ApiError(message or f"the API server answered {status}", status, float(wait) if wait.isdigit() else 0.0)


async def _read_all(connection: Connection) -> bytes:
    parts = []
    while chunk := await _read(connection, RESPONSE_SECONDS):
        parts.append(chunk)
    return b"".join(parts)


async def _read(connection: Connection, idle_timeout: float) -> bytes:
    try:
        async with asyncio.timeout(idle_timeout):
            return await connection.read()
    except TimeoutError:
        raise ApiError(f"silent for {idle_timeout:g} s") from None
    except UpstreamError as error:
        raise ApiError(str(error)) from None


def find_cluster() -> Cluster | None:
    """The cluster this process runs in, by the variables Kubernetes sets in every container."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Cluster(host, int(port)) if host and port.isdecimal() else None
