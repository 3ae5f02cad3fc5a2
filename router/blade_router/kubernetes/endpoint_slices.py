"""The engines of a Service, from its EndpointSlices.

A ready pod is an endpoint; a terminating one drains; one that is not ready is left out, and its requests in flight
continue. Where no pod is ready, those that never were are endpoints too, which get requests once they pass the router's
own health check: the kubelet looks once a second, and its word takes a while to come here. Of a service that is woken
for a request, so are those that were ready before: they may come back from standby. The slices of a Service may overlap
while Kubernetes moves pods between them, and a dual-stack Service has one set for each address family: a pod is one
endpoint all the same.
"""

from collections.abc import Callable, Collection, Iterable

import msgspec

from blade_protocol.routing import EndpointConfig, RouterConfig
from blade_router.config.parsing import is_name
from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.reflector import Metadata, Reflector

SERVICE_LABEL = "kubernetes.io/service-name"
PUBLIC_PORT, INTERNAL_PORT = "http", "internal"
FAMILIES = ("IPv4", "IPv6")
"""In the order of preference: an engine that listens on 0.0.0.0 accepts IPv4 only."""


class Conditions(msgspec.Struct):
    """``None`` is "unknown": by the API's definition ready, serving like ready, and not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetRef(msgspec.Struct):
    name: str = ""
    uid: str = ""


class SliceEndpoint(msgspec.Struct, rename="camel"):
    addresses: list[str]
    """Addresses of one pod; any of them will do."""
    conditions: Conditions = msgspec.field(default_factory=Conditions)
    target_ref: TargetRef | None = None


class SlicePort(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class EndpointSlice(msgspec.Struct, rename="camel"):
    metadata: Metadata
    address_type: str
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


def endpoints_of(slices: Iterable[EndpointSlice]) -> tuple[EndpointConfig, ...]:
    """One endpoint for each pod that is ready or draining, sorted by name."""
    by_url: dict[str, EndpointConfig] = {}
    for seen in _pods(slices).values():
        _, config, _ = min(seen, key=lambda found: found[:1])
        if any(conditions.terminating for _, _, conditions in seen):
            # Its address may already be another pod's, which then wins.
            by_url.setdefault(config.url, msgspec.structs.replace(config, draining=True))
        elif any(_is_ready(conditions) for _, _, conditions in seen):
            by_url[config.url] = config
    return _sorted(by_url.values())


def ready_pods(slices: Iterable[EndpointSlice]) -> set[str]:
    """The uids of the pods that are ready, or were when they began to terminate."""
    pods = _pods(slices).items()
    return {
        pod for pod, seen in pods if any(_is_ready(conditions) or conditions.terminating for _, _, conditions in seen)
    }


def starting_endpoints(slices: Iterable[EndpointSlice], had_started: Collection[str]) -> tuple[EndpointConfig, ...]:
    """One endpoint for each pod that is not ready, except for those that once were (their uids)."""
    found = (min(seen, key=lambda each: each[:1]) for pod, seen in _pods(slices).items() if pod not in had_started)
    return _sorted(msgspec.structs.replace(config, starting=True) for _, config, _ in found)


def _sorted(endpoints: Iterable[EndpointConfig]) -> tuple[EndpointConfig, ...]:
    return tuple(sorted(endpoints, key=lambda config: (config.name, config.url)))


def _pods(slices: Iterable[EndpointSlice]) -> dict[str, list[tuple[int, EndpointConfig, Conditions]]]:
    """What the slices say of each pod, by its uid: the family of the address, the endpoint, and its conditions."""
    pods: dict[str, list[tuple[int, EndpointConfig, Conditions]]] = {}
    for each in slices:
        ports = {port.name: port.port for port in each.ports or ()}
        if each.address_type not in FAMILIES or not ports.get(PUBLIC_PORT):
            continue
        family = FAMILIES.index(each.address_type)
        for endpoint in each.endpoints or ():
            config = _endpoint(endpoint, ports)
            pod = endpoint.target_ref.uid if endpoint.target_ref else ""
            pods.setdefault(pod or config.url, []).append((family, config, endpoint.conditions))
    return pods


def _endpoint(endpoint: SliceEndpoint, ports: dict[str | None, int | None]) -> EndpointConfig:
    address = endpoint.addresses[0]
    host = f"[{address}]" if ":" in address else address
    name = endpoint.target_ref.name if endpoint.target_ref else ""
    internal = ports.get(INTERNAL_PORT)
    return EndpointConfig(
        url=f"http://{host}:{ports[PUBLIC_PORT]}",
        name=name if is_name(name) else "",
        internal_url=f"http://{host}:{internal}" if internal else "",
    )


def _is_ready(conditions: Conditions) -> bool:
    return conditions.ready is not False and conditions.serving is not False


def slice_reflector(cluster: Cluster, service: str) -> Reflector[EndpointSlice]:
    """A reflector of the EndpointSlices of a Service in the pod's namespace."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{cluster.namespace()}/endpointslices"
    return Reflector(cluster, path, {"labelSelector": f"{SERVICE_LABEL}={service}"}, EndpointSlice)


class EndpointSliceSource:
    """The endpoints of the Service ``name`` as a source of configuration: only its ``endpoints`` are used.

    ``wakes``: whether engines that are not ready any more may come back, from standby.
    """

    def __init__(self, cluster: Cluster, name: str, wakes: Callable[[], bool] = lambda: False) -> None:
        self.config = RouterConfig()
        self._wakes = wakes
        self.reflector = slice_reflector(cluster, name)
        self._had_started: set[str] = set()
        """Uids of the pods that are there and have been ready."""

    @property
    def live(self) -> bool:
        return self.reflector.live

    def refresh(self) -> bool:
        """Do nothing: changes arrive by the watch."""
        return False

    async def watch(self, on_change: Callable[[], object]) -> None:
        def changed() -> None:
            slices = list(self.reflector.objects.values())
            endpoints, ready = endpoints_of(slices), ready_pods(slices)
            self._had_started = (self._had_started & _pods(slices).keys()) | ready
            if all(endpoint.draining for endpoint in endpoints):
                endpoints += starting_endpoints(slices, () if self._wakes() else self._had_started)
            self.config = RouterConfig(endpoints=endpoints)
            on_change()

        await self.reflector.run(changed)
