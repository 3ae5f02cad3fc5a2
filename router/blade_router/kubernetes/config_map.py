"""The router's own ConfigMap, seen when it changes: its mounted file follows up to a minute later."""

import logging
from collections.abc import Callable

import msgspec

from blade_protocol.routing import RouterConfig
from blade_router.config import ConfigError, parse_config
from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.following import Metadata, Mirror

logger = logging.getLogger("blade_router.kubernetes")

KEY = "router.json"


class ConfigMap(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] | None = None


class FollowedConfigMap:
    """The key ``router.json`` of the ConfigMap ``name`` as a source of configuration.

    Content that is not valid, or missing, changes nothing and leaves a line in the log.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.config = RouterConfig()
        path = f"/api/v1/namespaces/{cluster.namespace()}/configmaps"
        self._name = name
        self._content: str | None = ""
        self._valid = False
        # A Role may allow one ConfigMap by name, and then this selector is what makes list and watch pass.
        self.mirror = Mirror(cluster, path, {"fieldSelector": f"metadata.name={name}"}, ConfigMap)

    @property
    def live(self) -> bool:
        """What is there now is known, and in effect."""
        return self.mirror.live and self._valid

    @property
    def answers(self) -> bool:
        """What is there now is known, whether or not it makes sense."""
        return self.mirror.live

    def refresh(self) -> bool:
        """The API tells by itself."""
        return False

    async def follow(self, told: Callable[[], object]) -> None:
        await self.mirror.follow(lambda: self._read(told))

    def _read(self, told: Callable[[], object]) -> None:
        found = self.mirror.objects.get(self._name)
        content = (found.data or {}).get(KEY) if found is not None else None
        if content != self._content:
            self._content, self._valid = content, False
            try:
                if content is None:
                    raise ConfigError("it is not there")
                self.config = parse_config(content.encode())
                self._valid = True
            except ConfigError as error:
                logger.error("ConfigMap %s, %s: %s; the previous configuration stays in effect", self._name, KEY, error)
        if self._valid:
            told()
