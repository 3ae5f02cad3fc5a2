"""The replicas of this router, by the EndpointSlices of its Service."""

from collections.abc import Iterable

from blade_router.config.replicas import OnChange, Replicas
from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.endpoint_slices import FAMILIES, EndpointSlice, slice_reflector


def ready_replicas(slices: Iterable[EndpointSlice], port: int) -> list[str]:
    """Base URLs of the ready pods of a Service; one that is in slices of both address families counts once.

    Args:
        port: of their internal routes, which the Service may not have. All replicas have the same.
    """
    ready: dict[str, tuple[int, str]] = {}
    for each in slices:
        family = FAMILIES.index(each.address_type) if each.address_type in FAMILIES else len(FAMILIES)
        for endpoint in each.endpoints or ():
            if endpoint.conditions.ready is False or endpoint.conditions.terminating:
                continue
            address = endpoint.addresses[0]
            pod = endpoint.target_ref.uid if endpoint.target_ref and endpoint.target_ref.uid else address
            ready[pod] = min(ready.get(pod, (family, address)), (family, address))
    return [
        f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}" for _, address in ready.values()
    ]


class ServiceReplicas(Replicas):
    """The replicas behind the Service ``name``, the router's own."""

    def __init__(self, cluster: Cluster, name: str, port: int) -> None:
        super().__init__()
        self._port = port
        self.reflector = slice_reflector(cluster, name)

    @property
    def live(self) -> bool:
        return self.reflector.live

    async def watch(self, on_change: OnChange) -> None:
        """Call ``on_change`` with each new list, for ever."""
        await self.reflector.run(
            lambda: self.update(ready_replicas(self.reflector.objects.values(), self._port), on_change)
        )
