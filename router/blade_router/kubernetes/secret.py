"""A Secret, watched: mounted files follow up to a minute later, and keys are revoked in a hurry.

Its content is handed on once and not kept, neither here nor in the informer cache.
"""

import hashlib
from collections.abc import Callable

import msgspec

from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.reflector import Metadata, Reflector


class Secret(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] | None = None
    """Each value in base64. None once it was handed on."""
    handed_on: bool = False


class SecretWatcher:
    """Watches the Secret ``name`` of the pod's namespace."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        path = f"/api/v1/namespaces/{cluster.namespace()}/secrets"
        self._name = name
        self._seen: bytes | None = b""
        """Digest of its data; None: there was none."""
        # A Role may allow one Secret by name, and then this selector is what makes list and watch pass.
        self.reflector = Reflector(cluster, path, {"fieldSelector": f"metadata.name={name}"}, Secret)

    async def watch(self, changed: Callable[[dict[str, str] | None], object]) -> None:
        """Call ``changed`` with its data, in base64, whenever that changes; with None when there is no such Secret."""

        def on_update() -> None:
            found = self.reflector.objects.get(self._name)
            if found is not None and found.handed_on:
                return
            data: dict[str, str] | None = None
            seen: bytes | None = None
            if found is not None:
                data, found.data, found.handed_on = found.data or {}, None, True
                seen = hashlib.sha256(msgspec.json.encode(sorted(data.items()))).digest()
            if seen != self._seen:
                self._seen = seen
                changed(data)

        await self.reflector.run(on_update)
