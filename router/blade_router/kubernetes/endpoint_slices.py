"""Which engines a Service has, from its EndpointSlices.

A pod that is ready is chosen; one that is terminating finishes what it has; one that is not ready is left out, and
what it is doing for this router goes on until it is done. The slices of a Service may overlap while Kubernetes moves
pods between them, and a dual-stack Service has one set for each family: a pod is one endpoint all the same.
"""

from collections.abc import Callable, Iterable

import msgspec

from blade_protocol.routing import EndpointConfig, RouterConfig
from blade_router.config import is_name
from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.following import Metadata, Mirror

SERVICE_LABEL = "kubernetes.io/service-name"
PUBLIC_PORT, INTERNAL_PORT = "http", "internal"
FAMILIES = ("IPv4", "IPv6")
"""In the order of preference: an engine that listens on 0.0.0.0 hears IPv4 only."""


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
    """All of one pod; any of them will do."""
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
    """One endpoint for each pod that may be chosen or has to finish, sorted by name."""
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
            # Its address may already be another pod's, which then counts.
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


class FollowedEndpoints:
    """The endpoints of the Service ``name`` as a source of configuration: only its ``endpoints`` count."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.config = RouterConfig()
        path = f"/apis/discovery.k8s.io/v1/namespaces/{cluster.namespace()}/endpointslices"
        self.mirror = Mirror(cluster, path, {"labelSelector": f"{SERVICE_LABEL}={name}"}, EndpointSlice)

    @property
    def live(self) -> bool:
        return self.mirror.live

    def refresh(self) -> bool:
        """The API tells by itself."""
        return False

    async def follow(self, told: Callable[[], object]) -> None:
        def changed() -> None:
            self.config = RouterConfig(endpoints=endpoints_of(self.mirror.objects.values()))
            told()

        await self.mirror.follow(changed)
