"""HTTP to the API server: raw JSON requests over the connection pool of the ``kubernetes`` package's asyncio client.

``kubernetes.aio`` finds the server and the credentials (kubeconfig or service account), makes the TLS context and the
pool; its generated models and dynamic client are left out of the way of thousands of objects, see
``docs/decisions/0006-watching-kubernetes.md``. Errors have the server's own words.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import aiohttp
import msgspec
from kubernetes.aio import client, config

from blade_operator import metrics
from blade_operator.cluster.kubernetes.fence import WriteFence
from blade_operator.model.objects import Object

JSON = "application/json"
USER_AGENT = "bladellm-operator"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""For a list: of each object only its metadata."""
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"

READ_TIMEOUT = 60.0
WRITE_TIMEOUT = 3.5
"""Seconds; the server gets the same limit. Shorter than the margin `lease` leaves between two leaders."""
WRITES_AT_ONCE = 16
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ApiError(Exception):
    """The API server said no, or nothing: then ``status`` is 0."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        """Seconds the server wants the client to wait."""


async def load_configuration(kubeconfig: str | None, context: str | None = None) -> client.Configuration:
    """Server and credentials: of ``kubeconfig`` if given, else the pod's own, else $KUBECONFIG or ``~/.kube/config``.

    ``context``: of a kubeconfig; None for its current one.

    Raises:
        kubernetes.aio.config.ConfigException: there is none, or it cannot be used.
    """
    configuration = client.Configuration()
    if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=configuration)
    else:
        await config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=configuration)
    return configuration


def context_namespace(kubeconfig: str | None, context: str | None = None) -> str:
    """The namespace that commands work in where none is named: that of the context, or of the pod.

    Raises:
        kubernetes.aio.config.ConfigException: there is no such context, or no kubeconfig that can be read.
    """
    if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else "default"
    contexts, current = config.list_kube_config_contexts(kubeconfig)
    if context is not None:
        current = next((each for each in contexts if each["name"] == context), None)
    return str((current or {}).get("context", {}).get("namespace") or "default")


async def credentials(configuration: client.Configuration) -> dict[str, str]:
    """Headers that authenticate this process; a service account's token is read again from its file when it is due.

    Raises:
        ApiError: there are none now, as when an exec plugin of the kubeconfig fails; a later try may find some.
    """
    try:
        entries = (await configuration.auth_settings()).values()
    except (config.ConfigException, OSError, ValueError) as error:
        raise ApiError(0, "NoCredentials", f"no credentials for the API server: {error}") from error
    return {entry["key"]: entry["value"] for entry in entries if entry["in"] == "header" and entry["value"]}


class ConnectionPool(client.rest.RESTClientObject):  # type: ignore[misc]
    """The pool of the ``kubernetes`` package's client, opened at once instead of with its first request.

    Every request goes through the proxy and expects the certificate that the configuration names, whoever sends it.
    ``middlewares``: aiohttp's, around every request.
    """

    pool_manager: aiohttp.ClientSession

    def __init__(self, configuration: client.Configuration, *middlewares: aiohttp.ClientMiddlewareType) -> None:
        own = copy.deepcopy(configuration)
        own.connection_pool_maxsize = 0  # no limit: every watch holds a connection
        own.client_session_kwargs = {
            "headers": {"User-Agent": USER_AGENT},
            "middlewares": (*middlewares, self._name_server),
            "proxy": configuration.proxy,
        }
        super().__init__(own)
        self.pool_manager = self._create_pool_manager()

    async def _name_server(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """A session has no such default of its own."""
        if self.configuration.tls_server_name:
            request.server_hostname = self.configuration.tls_server_name
        return await send(request)


class Api:
    """Requests to one API server. Use it as an async context manager. Writes must pass ``fence``."""

    def __init__(self, configuration: client.Configuration, fence: WriteFence) -> None:
        self._configuration = configuration
        self._fence = fence
        self._writes = asyncio.Semaphore(WRITES_AT_ONCE)
        self._pool = ConnectionPool(configuration)

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.close()

    async def get(
        self, path: str, params: Mapping[str, str] | None = None, *, kind: str, timeout: float = READ_TIMEOUT
    ) -> Any:
        """The decoded response. Raises `ApiError`."""
        content = await self.read(path, params, kind=kind, timeout=timeout)
        try:
            return msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            raise _unreachable(error) from error

    async def read(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        kind: str,
        accept: str = JSON,
        timeout: float = READ_TIMEOUT,
    ) -> bytes:
        """The response as it came. Raises `ApiError`."""
        total = aiohttp.ClientTimeout(total=timeout)
        return await self._request("GET", path, params or {}, kind, total, headers={"Accept": accept})

    async def stream(self, path: str, params: Mapping[str, str], *, kind: str) -> AsyncIterator[bytes]:
        """The response bit by bit as it comes, however long that takes. Raises `ApiError`."""
        endless = aiohttp.ClientTimeout(total=None, sock_connect=READ_TIMEOUT)
        url, headers = self._configuration.host + path, await credentials(self._configuration)
        try:
            async with self._pool.pool_manager.get(url, params=params, headers=headers, timeout=endless) as response:
                count_request("get", kind, response.status)
                if response.status >= 400:
                    raise _refused(response, await response.read())
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable(error) from error

    async def websocket(
        self, path: str, params: Mapping[str, str], protocol: str, *, kind: str
    ) -> aiohttp.ClientWebSocketResponse:
        """An open WebSocket that speaks ``protocol``. Raises `ApiError`."""
        try:
            url, headers = self._configuration.host + path, await credentials(self._configuration)
            connected = await asyncio.wait_for(
                self._pool.pool_manager.ws_connect(url, params=params, headers=headers, protocols=(protocol,)),
                READ_TIMEOUT,
            )
        except aiohttp.WSServerHandshakeError as error:
            count_request("connect", kind, error.status)
            raise ApiError(error.status, "", f"the API server responded with {error.status} to {path}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            count_request("connect", kind, 0)
            raise _unreachable(error) from error
        count_request("connect", kind, 101)
        return connected

    async def check(self, path: str, params: Mapping[str, str], *, kind: str, timeout: float) -> None:
        """Whether a GET is accepted. Its response is not read: that of a watch has no end. Raises `ApiError`."""
        total = aiohttp.ClientTimeout(total=timeout)
        await self._request("GET", path, params, kind, total, headers={"Accept": JSON}, read=False)

    async def write(
        self,
        method: str,
        path: str,
        body: Object | list[Object],
        *,
        kind: str,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
        timeout: float = WRITE_TIMEOUT,
        guarded: bool = True,
    ) -> Object:
        """The decoded response.

        The fence is checked when the connection stands, just before the body goes out: without it the server does
        nothing (fencing).

        Raises:
            ApiError: refused, or no response in time.
            NotLeader: the fence is shut; nothing was sent that the server could act on.
        """
        data = msgspec.json.encode(body)

        async def guard() -> AsyncIterator[bytes]:
            self._fence.check()
            yield data

        limits = {"timeout": f"{timeout * 1000:.0f}ms", **(params or {})}
        total = aiohttp.ClientTimeout(total=timeout)
        headers = {"Accept": JSON, "Content-Type": content_type}
        if not guarded:
            content = await self._request(method, path, limits, kind, total, data, headers)
        else:
            async with self._writes:
                self._fence.check()
                try:
                    content = await self._request(method, path, limits, kind, total, guard(), headers)
                except ApiError as error:
                    if error.status == 0:
                        self._fence.check()  # aiohttp reports a failed body as a broken connection
                    raise
        try:
            decoded = msgspec.json.decode(content) if content else None
        except msgspec.DecodeError as error:
            raise _unreachable(error) from error
        return decoded if isinstance(decoded, dict) else {}

    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        kind: str,
        timeout: aiohttp.ClientTimeout,
        data: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        read: bool = True,
    ) -> bytes:
        verb = method.lower()
        if method == "GET":
            verb = "watch" if "watch" in params else "list" if "limit" in params else "get"
        try:
            async with self._pool.pool_manager.request(
                method,
                self._configuration.host + path,
                params=params,
                data=data,
                headers={**headers, **await credentials(self._configuration)},
                timeout=timeout,
            ) as response:
                count_request(verb, kind, response.status)
                content = await response.read() if read or response.status >= 400 else b""
                if response.status >= 400:
                    raise _refused(response, content)
                return content
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            count_request(verb, kind, 0)
            raise _unreachable(error) from error


def _refused(response: aiohttp.ClientResponse, content: bytes) -> ApiError:
    try:
        status = msgspec.json.decode(content)
        reason, message = status.get("reason", ""), status.get("message", "")
    except (msgspec.DecodeError, AttributeError):
        reason, message = "", content[:500].decode(errors="replace")
    wait = response.headers.get("Retry-After", "")
    retry_after = float(wait) if wait.isdecimal() else None
    return ApiError(response.status, reason, message or f"the API server responded with {response.status}", retry_after)


def _unreachable(error: Exception) -> ApiError:
    return ApiError(
        0,
        "Unreachable",
        f"no response from the API server: {error!s}" if str(error) else "no response from the API server in time",
    )


def count_request(verb: str, kind: str, status: int) -> None:
    """Count one request to the API server; status 0: no response."""
    metrics.API_REQUESTS.labels(verb, kind, str(status)).inc()
