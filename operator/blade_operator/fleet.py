"""HTTP client for pods: asks engines for state and download progress, drains them, and asks routers for their signals.

An engine that does not respond in time is absent from the result: unknown, not failed. The probes of its pod say
whether it is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from blade_operator import long_poll, metrics
from blade_operator.kept_connections import KeptConnections, Peer
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_protocol import headers, paths
from blade_protocol.adapters import AdapterInfo, AdapterList, LoadAdapterRequest, UnloadAdapterRequest
from blade_protocol.fetch import FetchProgress
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER
from blade_protocol.signals import RouterSignals
from blade_protocol.state import DrainRequest, EngineState

T = TypeVar("T")

TIMEOUT = 1.0
"""Seconds for one request."""
DEMAND_SECONDS = 60.0
"""Seconds for which a router is waited for that holds no request."""
OK = 200
NOT_FOUND = 404
METHOD_NOT_ALLOWED = 405
"""The responses of a router without a web UI."""
UNAUTHORIZED = 401
"""The response of an engine that expects another token. A 403 is somebody else's, such as a service mesh's."""
BUSY = 503
"""The response of an engine that has too much to do, and is asked again."""
MESSAGE_LIMIT = 1024
"""Characters of an engine's error that are kept."""
MAX_CONNECTIONS = 64
"""Requests in flight at the same time."""
_SIGNALS = msgspec.json.Decoder(RouterSignals)


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What the pods of a service said, by pod name; who did not respond is absent."""

    engines: Mapping[str, EngineState] = field(default_factory=dict)
    downloads: Mapping[str, FetchProgress] = field(default_factory=dict)
    adapters: Mapping[str, tuple[AdapterInfo, ...]] = field(default_factory=dict)
    unauthorized: frozenset[str] = frozenset()
    """Pods that do not accept the operator's token."""
    signals: Mapping[str, RouterSignals] = field(default_factory=dict)
    """Of routers, if they were asked."""


@dataclass(frozen=True, slots=True)
class Router:
    """A router that has started, and what is needed to ask it."""

    name: str
    """Of its pod."""
    peer: Peer
    pod: Object
    """Its metadata, by which its token is found."""


class Fleet:
    """An HTTP client for the pods of services. Use it as an async context manager.

    ``token`` returns the secret that opens the internal port of a pod, or None where there is none.
    """

    def __init__(self, timeout: float = TIMEOUT, token: Callable[[Object], str | None] | None = None) -> None:
        self._token = token
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
        wait = httpx.Timeout(timeout, pool=5 * timeout)  # with very many engines a request waits for a connection
        self._client = httpx.AsyncClient(timeout=wait, limits=limits, trust_env=False)
        self._kept = KeptConnections(timeout)

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.close()
        await self._client.aclose()

    async def query(self, pods: Iterable[Object], signals: bool = False) -> FleetReport:
        """The state of each engine and the progress of each download that responds, by pod name; with ``signals`` also
        those of each router."""
        found, refusing = tuple(pods), set[str]()
        engines, downloads, routers = await asyncio.gather(
            self._query_all(found, engine_url, paths.INTERNAL_STATE, EngineState, refusing),
            self._query_all(found, fetch_url, paths.INTERNAL_FETCH, FetchProgress, refusing),
            self._query_routers(started_routers(found) if signals else (), refusing),
        )
        serving = [pod for pod in found if _serves_adapters(engines.get(pod["metadata"]["name"]))]
        lists = await self._query_all(serving, engine_url, paths.INTERNAL_ADAPTERS, AdapterList, refusing)
        adapters = {name: tuple(each.adapters) for name, each in lists.items()}
        return FleetReport(engines, downloads, adapters, frozenset(refusing), routers)

    async def query_signals(self, routers: Sequence[Router]) -> dict[str, RouterSignals]:
        """The signals of each router that responds, by pod name. For who asks again and again: connections are kept."""
        return await self._query_routers(routers, set())

    async def _query_routers(self, routers: Sequence[Router], refusing: set[str]) -> dict[str, RouterSignals]:
        if len(routers) == 1:
            found = [await self._get_signals(routers[0], refusing)]
        else:
            found = await asyncio.gather(*(self._get_signals(router, refusing) for router in routers))
        return {router.name: each for router, each in zip(routers, found, strict=True) if each is not None}

    async def _get_signals(self, router: Router, refusing: set[str]) -> RouterSignals | None:
        try:
            response = await self._kept.get(router.peer, paths.INTERNAL_SIGNALS, self._headers(router.pod))
            if response.status == UNAUTHORIZED:
                metrics.ENGINE_UNAUTHORIZED.inc()
                refusing.add(router.name)
            return _SIGNALS.decode(response.body) if response.status == OK else None
        except (OSError, ValueError):  # a DecodeError is a ValueError, too
            return None

    async def wait_for_demand(self, router: Router) -> bool:
        """Whether ``router`` holds requests that wait for an engine: once it does, or after a minute.

        Raises:
            OSError: it cannot be reached, or did not respond in time.
            ValueError: it does not say.
        """
        url = f"http://{router.peer.authority}{paths.INTERNAL_SIGNALS}?wait_for=demand&timeout={DEMAND_SECONDS:g}"
        body = await long_poll.get(url, self._headers(router.pod), DEMAND_SECONDS)
        try:
            signals = msgspec.json.decode(body, type=RouterSignals)
        except msgspec.DecodeError as error:
            raise ValueError(f"these are no signals: {error}") from error
        return any(service.held_requests for service in signals.services)

    async def report_service(self, router: Router, report: bytes) -> bool:
        """Tell ``router`` how its service is, as JSON. False when it did not take it, and may another time."""
        url = f"http://{router.peer.authority}{paths.INTERNAL_SERVICE}"
        kind = {"content-type": "application/json"}
        try:
            response = await self._client.post(url, content=report, headers={**kind, **self._headers(router.pod)})
        except httpx.HTTPError:
            return False
        return response.is_success or response.status_code in (NOT_FOUND, METHOD_NOT_ALLOWED)

    async def drain(self, pod: Object, draining: bool = True, *, standby: bool = False) -> bool:
        """Drain the engine in ``pod``: it accepts no new request; or take it back in. ``standby``: it also gives its KV
        cache back once it has no request. False when it did not respond."""
        response = await self._post(pod, paths.INTERNAL_DRAIN, DrainRequest(draining=draining, standby=standby))
        return response is not None and response.is_success

    async def load_adapter(self, pod: Object, request: LoadAdapterRequest) -> str:
        """Have the engine in ``pod`` load an adapter, or replace one; it does so after its response.

        Returns why it refuses; empty when it does not, has too many to load just now, or did not respond.
        """
        response = await self._post(pod, paths.INTERNAL_LOAD_ADAPTER, request)
        if response is None or response.is_success or response.status_code == BUSY:
            return ""
        return _error_message(response)

    async def unload_adapter(self, pod: Object, name: str) -> bool:
        """Have the engine in ``pod`` unload an adapter. False when it did not respond, or has none of that name."""
        response = await self._post(pod, paths.INTERNAL_UNLOAD_ADAPTER, UnloadAdapterRequest(lora_name=name))
        return response is not None and response.is_success

    async def _post(self, pod: Object, path: str, body: msgspec.Struct) -> httpx.Response | None:
        """The response of the engine in ``pod``; None: there is none."""
        url = engine_url(pod)
        if url is None:
            return None
        try:
            return await self._client.post(
                f"{url}{path}",
                content=msgspec.json.encode(body),
                headers={"content-type": "application/json", **self._headers(pod)},
            )
        except httpx.HTTPError:
            return None

    async def _query_all(
        self, pods: Iterable[Object], url: Callable[[Object], str | None], path: str, kind: type[T], refusing: set[str]
    ) -> dict[str, T]:
        targets = [(pod, f"{base}{path}") for pod in pods if (base := url(pod)) is not None]
        results = await asyncio.gather(*(self._get(pod, target, kind, refusing) for pod, target in targets))
        return {pod["metadata"]["name"]: result for (pod, _), result in zip(targets, results, strict=True) if result}

    async def _get(self, pod: Object, url: str, kind: type[T], refusing: set[str]) -> T | None:
        try:
            response = await self._client.get(url, headers=self._headers(pod))
            if response.status_code == UNAUTHORIZED:
                metrics.ENGINE_UNAUTHORIZED.inc()
                refusing.add(pod["metadata"]["name"])
            response.raise_for_status()
            return msgspec.json.decode(response.content, type=kind)
        except (httpx.HTTPError, msgspec.DecodeError):
            return None

    def _headers(self, pod: Object) -> dict[str, str]:
        token = self._token(pod) if self._token else None
        return {headers.INTERNAL_TOKEN: token} if token else {}


def _serves_adapters(state: EngineState | None) -> bool:
    return state is not None and state.adapter_counts is not None


def _error_message(response: httpx.Response) -> str:
    """What an engine says of a request that it refuses."""
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text
    return message[:MESSAGE_LIMIT] or f"HTTP {response.status_code}"


def engine_url(pod: Object) -> str | None:
    """Base URL of the internal port of a pod whose engine has started, or None."""
    return _port(pod, ROLE_ENGINE, "internal") if _has_started(pod) else None


def fetch_url(pod: Object) -> str | None:
    """Base URL of the internal port of a pod that still downloads its model, or None."""
    fetch = podutil.container(pod, podutil.FETCH)
    return _port(pod, ROLE_ENGINE, "internal") if fetch is not None and fetch.running else None


def admin_url(pod: Object) -> str | None:
    """Base URL of the admin port of a pod whose router has started, or None."""
    return _port(pod, ROLE_ROUTER, "admin") if _has_started(pod) else None


def started_routers(pods: Iterable[Object]) -> tuple[Router, ...]:
    """The routers among ``pods`` that have started; one that terminates may still have requests."""
    found = list[Router]()
    for pod in pods:
        if (base := admin_url(pod)) is not None:
            metadata, parts = pod["metadata"], urlsplit(base)
            peer = Peer(str(metadata.get("uid", metadata["name"])), str(parts.hostname), parts.port or 80)
            found.append(Router(metadata["name"], peer, {"metadata": metadata}))
    return tuple(found)


def _has_started(pod: Object) -> bool:
    return any(entry.get("started") for entry in pod.get("status", {}).get("containerStatuses") or ())


def _port(pod: Object, role: str, name: str) -> str | None:
    """Base URL of the port called ``name`` of a pod that has this role and an address."""
    address = pod.get("status", {}).get("podIP")
    if podutil.role(pod) != role or not address:
        return None
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return f"http://{f'[{address}]' if ':' in address else address}:{port['containerPort']}"
    return None
