"""How many replicas this router has: each takes its part of a limit."""

from collections.abc import Callable, Iterable

from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.endpoint_slices import SERVICE_LABEL, EndpointSlice
from blade_router.kubernetes.following import Mirror


def count_ready(slices: Iterable[EndpointSlice]) -> int:
    """Pods of a Service that get requests; one that is in slices of both families counts once."""
    ready = {
        endpoint.target_ref.uid if endpoint.target_ref and endpoint.target_ref.uid else endpoint.addresses[0]
        for each in slices
        for endpoint in each.endpoints or ()
        if endpoint.conditions.ready is not False and not endpoint.conditions.terminating
    }
    return len(ready)


class FollowedPeers:
    """The live count of the Service ``name``, the router's own; 1 until the API has said more."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.count = 1
        self._told = False
        path = f"/apis/discovery.k8s.io/v1/namespaces/{cluster.namespace()}/endpointslices"
        self.mirror = Mirror(cluster, path, {"labelSelector": f"{SERVICE_LABEL}={name}"}, EndpointSlice)

    @property
    def live(self) -> bool:
        return self.mirror.live

    async def follow(self, told: Callable[[int], object]) -> None:
        """Call ``told`` with each new count, for ever."""

        def changed() -> None:
            count = max(1, count_ready(self.mirror.objects.values()))
            if count != self.count or not self._told:  # the first always: the command line may have said another
                self.count, self._told = count, True
                told(count)

        await self.mirror.follow(changed)
