"""The number of this router's replicas, by the EndpointSlices of its Service."""

from collections.abc import Callable, Iterable

from blade_router.config.replica_count import ReplicaCount
from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.endpoint_slices import EndpointSlice, slice_reflector


def count_ready(slices: Iterable[EndpointSlice]) -> int:
    """The ready pods of a Service; one that is in slices of both address families counts once."""
    ready = {
        endpoint.target_ref.uid if endpoint.target_ref and endpoint.target_ref.uid else endpoint.addresses[0]
        for each in slices
        for endpoint in each.endpoints or ()
        if endpoint.conditions.ready is not False and not endpoint.conditions.terminating
    }
    return len(ready)


class ServiceReplicaCount(ReplicaCount):
    """The replica count of the Service ``name``, the router's own."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__()
        self.reflector = slice_reflector(cluster, name)

    @property
    def live(self) -> bool:
        return self.reflector.live

    async def watch(self, on_change: Callable[[int], object]) -> None:
        """Call ``on_change`` with each new count, for ever."""
        await self.reflector.run(lambda: self.update(count_ready(self.reflector.objects.values()), on_change))
