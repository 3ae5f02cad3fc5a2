"""HTTP to the API server: raw JSON requests over pooled connections, and errors with the server's own words.

``kubernetes.aio`` finds the server and the credentials (kubeconfig or service account); its generated models and
dynamic client are left out of the way of thousands of objects, see ``docs/decisions/0006-watching-kubernetes.md``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import aiohttp
import msgspec
from kubernetes.aio import client, config

from blade_operator import metrics
from blade_operator.cluster.kubernetes.gate import Gate
from blade_operator.objects import Object

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

READ_TIMEOUT = 60.0
WRITE_TIMEOUT = 3.5
"""Seconds; the server is told as well. Shorter than the margin `lease` leaves between two leaders."""
SILENCE = 75.0
"""Seconds without a byte after which a watch counts as dead: the server has ended it before, see `reflector`."""
WRITES_AT_ONCE = 16
_LONGEST_LINE = 4 << 20


class ApiError(Exception):
    """The API server said no, or nothing: then ``status`` is 0."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        """Seconds the server asks to wait."""


async def load_configuration(kubeconfig: str | None) -> client.Configuration:
    """Server and credentials: of ``kubeconfig`` if given, else the pod's own, else $KUBECONFIG or ``~/.kube/config``.

    Raises:
        kubernetes.aio.config.ConfigException: there is none, or it cannot be used.
    """
    configuration = client.Configuration()
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=configuration)
    else:
        await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return configuration


async def credentials(configuration: client.Configuration) -> dict[str, str]:
    """Headers that say who asks; a service account's token is read again from its file when it is due."""
    entries = (await configuration.auth_settings()).values()
    return {entry["key"]: entry["value"] for entry in entries if entry["in"] == "header" and entry["value"]}


class Api:
    """Requests to one API server. Use it as an async context manager. Writes must pass ``gate``."""

    def __init__(self, configuration: client.Configuration, gate: Gate) -> None:
        self._configuration = configuration
        self._gate = gate
        self._writes = asyncio.Semaphore(WRITES_AT_ONCE)
        context = client.rest.RESTClientObject(configuration).ssl_context
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            trust_env=True,
            read_bufsize=_LONGEST_LINE,
            headers={"Accept": JSON, "User-Agent": "bladellm-operator"},
        )

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(
        self, path: str, params: Mapping[str, str] | None = None, *, kind: str, timeout: float = READ_TIMEOUT
    ) -> Any:
        """The decoded answer. Raises `ApiError`."""
        return await self._request("GET", path, params or {}, kind, aiohttp.ClientTimeout(total=timeout))

    async def write(
        self,
        method: str,
        path: str,
        body: Object,
        *,
        kind: str,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
        timeout: float = WRITE_TIMEOUT,
        guarded: bool = True,
    ) -> Object:
        """The decoded answer.

        The gate is asked when the connection stands, just before the body goes out: without it the server does nothing.

        Raises:
            ApiError: refused, or no answer in time.
            NotLeader: the gate is shut; nothing was sent that the server could act on.
        """
        data = msgspec.json.encode(body)

        async def guard() -> AsyncIterator[bytes]:
            self._gate.check()
            yield data

        limits = {"timeout": f"{timeout * 1000:.0f}ms", **(params or {})}
        total = aiohttp.ClientTimeout(total=timeout)
        if not guarded:
            answer = await self._request(method, path, limits, kind, total, data, content_type)
        else:
            async with self._writes:
                self._gate.check()
                try:
                    answer = await self._request(method, path, limits, kind, total, guard(), content_type)
                except ApiError as error:
                    if error.status == 0:
                        self._gate.check()  # aiohttp tells of a failed body as of a broken connection
                    raise
        return answer if isinstance(answer, dict) else {}

    async def lines(self, path: str, params: Mapping[str, str], *, kind: str) -> AsyncIterator[bytes]:
        """The lines of an answer that goes on, as they come. Raises `ApiError`, also after `SILENCE`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=READ_TIMEOUT, sock_read=SILENCE)
        try:
            async with self._send("GET", path, params, timeout) as answer:
                _count("watch", kind, answer.status)
                if answer.status != 200:
                    raise _refused(answer, await answer.read())
                while line := await answer.content.readuntil(b"\n"):
                    yield line
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _no_answer(error) from error

    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        kind: str,
        timeout: aiohttp.ClientTimeout,
        data: bytes | AsyncIterator[bytes] | None = None,
        content_type: str = JSON,
    ) -> Any:
        verb = "list" if method == "GET" and "limit" in params else method.lower()
        try:
            async with self._send(method, path, params, timeout, data, content_type) as answer:
                _count(verb, kind, answer.status)
                content = await answer.read()
                if answer.status >= 400:
                    raise _refused(answer, content)
                return msgspec.json.decode(content) if content else None
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
            _count(verb, kind, 0)
            raise _no_answer(error) from error

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        data: bytes | AsyncIterator[bytes] | None = None,
        content_type: str = JSON,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = await credentials(self._configuration)
        if data is not None:
            headers["Content-Type"] = content_type
        async with self._session.request(
            method,
            self._configuration.host + path,
            params=params,
            data=data,
            headers=headers,
            timeout=timeout,
            proxy=self._configuration.proxy,
            server_hostname=self._configuration.tls_server_name,
        ) as answer:
            yield answer


def _refused(answer: aiohttp.ClientResponse, content: bytes) -> ApiError:
    try:
        status = msgspec.json.decode(content)
        reason, message = status.get("reason", ""), status.get("message", "")
    except (msgspec.DecodeError, AttributeError):
        reason, message = "", content[:500].decode(errors="replace")
    wait = answer.headers.get("Retry-After", "")
    retry_after = float(wait) if wait.isdecimal() else None
    return ApiError(answer.status, reason, message or f"the API server answered {answer.status}", retry_after)


def _no_answer(error: Exception) -> ApiError:
    return ApiError(
        0,
        "Unreachable",
        f"no answer from the API server: {error!s}" if str(error) else "no answer from the API server in time",
    )


def _count(verb: str, kind: str, status: int) -> None:
    metrics.API_REQUESTS.labels(verb, kind, str(status)).inc()
