"""The engines of a Service, from its EndpointSlices.

A ready pod is an endpoint; a terminating one drains; one that is not ready is left out, and its requests in flight
continue. The slices of a Service may overlap while Kubernetes moves pods between them, and a dual-stack Service has
one set for each address family: a pod is one endpoint all the same.
"""

from collections.abc import Callable, Iterable

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
    by_url: dict[str, EndpointConfig] = {}
    for seen in pods.values():
        _, config, _ = min(seen, key=lambda found: found[:1])
        if any(conditions.terminating for _, _, conditions in seen):
            # Its address may already be another pod's, which then wins.
            by_url.setdefault(config.url, msgspec.structs.replace(config, draining=True))
        elif any(_is_ready(conditions) for _, _, conditions in seen):
            by_url[config.url] = config
    return tuple(sorted(by_url.values(), key=lambda config: (config.name, config.url)))


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
    """The endpoints of the Service ``name`` as a source of configuration: only its ``endpoints`` are used."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.config = RouterConfig()
        self.reflector = slice_reflector(cluster, name)

    @property
    def live(self) -> bool:
        return self.reflector.live

    def refresh(self) -> bool:
        """Do nothing: changes arrive by the watch."""
        return False

    async def watch(self, on_change: Callable[[], object]) -> None:
        def changed() -> None:
            self.config = RouterConfig(endpoints=endpoints_of(self.reflector.objects.values()))
            on_change()

        await self.reflector.run(changed)
