"""A Secret, seen when it changes: mounted files follow up to a minute later, and keys are withdrawn in a hurry.

What is in it is handed on once and not kept, here as little as in the mirror.
"""

import hashlib
from collections.abc import Callable

import msgspec

from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.following import Metadata, Mirror


class Secret(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] | None = None
    """Each value in base64. None once it was handed on."""
    taken: bool = False


class FollowedSecret:
    """The Secret ``name`` of the pod's namespace."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        path = f"/api/v1/namespaces/{cluster.namespace()}/secrets"
        self._name = name
        self._seen: bytes | None = b""
        """Digest of its data; None: it was not there."""
        # A Role may allow one Secret by name, and then this selector is what makes list and watch pass.
        self.mirror = Mirror(cluster, path, {"fieldSelector": f"metadata.name={name}"}, Secret)

    async def follow(self, changed: Callable[[dict[str, str] | None], object]) -> None:
        """Call ``changed`` with its data, in base64, whenever that changes; with None when there is no such Secret."""

        def look() -> None:
            found = self.mirror.objects.get(self._name)
            if found is not None and found.taken:
                return
            data: dict[str, str] | None = None
            seen: bytes | None = None
            if found is not None:
                data, found.data, found.taken = found.data or {}, None, True
                seen = hashlib.sha256(msgspec.json.encode(sorted(data.items()))).digest()
            if seen != self._seen:
                self._seen = seen
                changed(data)

        await self.mirror.follow(look)
