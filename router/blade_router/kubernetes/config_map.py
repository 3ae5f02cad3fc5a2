"""The router's own ConfigMap, watched: its mounted file follows up to a minute later."""

import logging
from collections.abc import Callable

import msgspec

from blade_protocol.routing import RouterConfig
from blade_router.config.parsing import ConfigError, parse_config
from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.reflector import Metadata, Reflector

logger = logging.getLogger("blade_router.kubernetes")

KEY = "router.json"


class ConfigMap(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] | None = None


class ConfigMapSource:
    """The key ``router.json`` of the ConfigMap ``name`` as a source of configuration.

    Invalid or missing content changes nothing and is logged.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.config = RouterConfig()
        path = f"/api/v1/namespaces/{cluster.namespace()}/configmaps"
        self._name = name
        self._content: str | None = ""
        self._valid = False
        # A Role may allow one ConfigMap by name, and then this selector is what makes list and watch pass.
        self.reflector = Reflector(cluster, path, {"fieldSelector": f"metadata.name={name}"}, ConfigMap)

    @property
    def live(self) -> bool:
        """The present content is known, and in effect."""
        return self.reflector.live and self._valid

    @property
    def reachable(self) -> bool:
        """The present content is known, valid or not."""
        return self.reflector.live

    def refresh(self) -> bool:
        """Do nothing: changes arrive by the watch."""
        return False

    async def watch(self, on_change: Callable[[], object]) -> None:
        await self.reflector.run(lambda: self._read(on_change))

    def _read(self, on_change: Callable[[], object]) -> None:
        found = self.reflector.objects.get(self._name)
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
            on_change()
