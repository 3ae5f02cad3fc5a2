"""Requests to the Kubernetes API from inside a pod: a list, and a watch that streams.

Two kinds of GET are all a router needs, so this stands on the router's own HTTP connection. The official client would
add 20 MB to every router process, aiohttp alone 10 MB; this adds the 1 MB that TLS takes. Token and authority are read
from the ServiceAccount's folder for each request, since Kubernetes replaces both while the pod runs.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec

from blade_router.config import ConfigError
from blade_router.errors import header_of
from blade_router.upstream import Connection, connect
from blade_router.upstream_errors import UpstreamError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a pod's token, the API's certificate authority and the namespace."""
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0
"""Until the next bytes of a list, or the beginning of a watch."""


class ApiError(Exception):
    """The API server could not be asked, or refused. ``status`` is HTTP's, 0 when there was no answer."""

    def __init__(self, message: str, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds the server asked to be left alone."""


class Status(msgspec.Struct):
    """How Kubernetes says that something is wrong."""

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
        """The body of a successful answer.

        Raises:
            ApiError: anything else.
        """
        connection = await self.open(path, query)
        try:
            return await _read_all(connection)
        finally:
            close(connection)

    async def open(self, path: str, query: Mapping[str, str]) -> Connection:
        """A successful answer of which only the head has arrived. The caller closes the connection.

        Raises:
            ApiError: no answer, or another one.
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
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.response()
            if connection.status != 200:
                raise await _refusal(connection)
        except BaseException as error:
            close(connection)
            if isinstance(error, UpstreamError | TimeoutError):
                raise ApiError(f"{self.host}:{self.port}: {str(error) or 'no answer'}") from None
            raise
        return connection


async def lines(connection: Connection, silence: float) -> AsyncIterator[bytes]:
    """The lines of an answer that streams, until the server ends it.

    Raises:
        ApiError: it broke, or brought nothing for ``silence`` seconds.
    """
    rest = b""
    while chunk := await _read(connection, silence):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line


def close(connection: Connection) -> None:
    """Be done with an answer, complete or not."""
    connection.abort(ConnectionAbortedError())


async def _refusal(connection: Connection) -> ApiError:
    try:
        message = _decode_status(await _read_all(connection)).message
    except (ApiError, msgspec.DecodeError):
        message = ""
    wait = header_of(connection.headers, b"retry-after")
    status = connection.status
    return ApiError(message or f"the API server answered {status}", status, float(wait) if wait.isdigit() else 0.0)


async def _read_all(connection: Connection) -> bytes:
    parts = []
    while chunk := await _read(connection, ANSWER_SECONDS):
        parts.append(chunk)
    return b"".join(parts)


async def _read(connection: Connection, silence: float) -> bytes:
    try:
        async with asyncio.timeout(silence):
            return await connection.read()
    except TimeoutError:
        raise ApiError(f"silent for {silence:g} s") from None
    except UpstreamError as error:
        raise ApiError(str(error)) from None


def find_cluster() -> Cluster | None:
    """The cluster this process runs in, by the variables Kubernetes sets in every container."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Cluster(host, int(port)) if host and port.isdecimal() else None
