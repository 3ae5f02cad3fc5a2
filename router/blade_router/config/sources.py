"""Configuration sources: files and Kubernetes objects, applied without a restart.

A file is polled five times a second by its metadata (that works on every file system, through the symlinks of a
mounted ConfigMap, and with editors that replace the file); the Kubernetes API is watched. Invalid content never takes
effect: the last valid one stays, and the log names the wrong field.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from blade_protocol.routing import EndpointConfig, PolicyName, RouterConfig
from blade_router.config.parsing import ConfigError, merge, parse_config

logger = logging.getLogger("blade_router.sources")

POLL_SECONDS = 0.2
RETRY_SECONDS = 1.0
"""Between two attempts to apply a configuration that failed to apply."""
INITIAL_SYNC_SECONDS = 3.0
"""Longest wait for the first list from the Kubernetes API before requests are served."""


class Source(Protocol):
    """A source of configuration. ``config`` is the last valid one, empty before the first."""

    config: RouterConfig

    @property
    def live(self) -> bool:
        """``config`` is the source's present content, as far as is known."""
        ...

    def refresh(self) -> bool:
        """Read the source now, where it is polled; True when ``config`` changed."""
        ...

    async def watch(self, on_change: Callable[[], object]) -> None:
        """Call ``on_change`` whenever ``config`` may have changed, for ever."""
        ...


class RemoteSource(Source, Protocol):
    """A source that can be unreachable."""

    @property
    def reachable(self) -> bool:
        """The source's present content is known, valid or not."""
        ...


class WatchedFile:
    """A ``RouterConfig`` in a file. ``config`` is the last valid content, empty before the first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = RouterConfig()
        self._seen: tuple[int, int, int] | None = None

    def load(self) -> bool:
        """Read the file if it changed since the last call; True when ``config`` did.

        Raises:
            ConfigError: the new content is not valid, or the file cannot be read. Raised once per change.
            FileNotFoundError: there is no such file.
        """
        try:
            stat = os.stat(self.path)
            signature = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if signature == self._seen:
                return False
            self._seen = signature
            config = parse_config(self.path.read_bytes())
        except FileNotFoundError:
            self._seen = None
            raise
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None
        changed = config != self.config
        self.config = config
        return changed

    def load_existing(self) -> None:
        """As ``load``, but a missing file is a ``ConfigError`` too."""
        try:
            self.load()
        except FileNotFoundError:
            raise ConfigError(f"{self.path}: no such file") from None

    @property
    def live(self) -> bool:
        return True

    async def watch(self, on_change: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.refresh():
                on_change()

    def refresh(self) -> bool:
        """As ``load``, but an invalid or missing file changes nothing and is logged."""
        try:
            return self.load()
        except FileNotFoundError:
            return False
        except ConfigError as error:
            logger.error("%s; the previous configuration stays in effect", error)
            return False


class Configuration:
    """The effective configuration, merged from all sources.

    Args:
        static: endpoints of the command line.
        config: a file with everything; its ``policy`` and ``models`` are used, and its endpoints are added.
        config_map: the same from the API. It is newer than the file, which is used before the first list and, when it
            changes, while the API is away.
        service: only its endpoints are used.
        services: the same for several services, by name; their endpoints get the name as their service.
        policy: of the command line; overrides all others.
    """

    def __init__(
        self,
        static: tuple[EndpointConfig, ...] = (),
        *,
        config: WatchedFile | None = None,
        config_map: RemoteSource | None = None,
        service: Source | None = None,
        services: Mapping[str, Source] | None = None,
        policy: PolicyName | None = None,
    ) -> None:
        self._static = static
        self._config = config
        self._config_map = config_map
        self._service = service
        self._services = dict(services or {})
        self._policy = policy
        self._base = RouterConfig()
        self._effective = RouterConfig()
        self._failed: RouterConfig | None = None
        """A configuration that could not be applied, and is retried."""
        named = {"config": config, "config_map": config_map, "service": service}
        self._sources: dict[str, Source] = {name: source for name, source in named.items() if source is not None}
        self._sources |= {f"service {name}": source for name, source in self._services.items()}

    def start(self) -> RouterConfig:
        """The configuration to start with.

        Raises:
            ConfigError: the ``config`` file is missing or invalid, and there is no other source of the same: a person
                must see that now. A service file with such a fault is waited for instead.
        """
        if self._config is not None:
            if self._config_map is None:
                self._config.load_existing()
            else:
                self._config.refresh()
            self._base = self._config.config
        for source in (self._service, *self._services.values()):
            if source is not None:
                source.refresh()
        self._effective = self.current()
        return self._effective

    def current(self) -> RouterConfig:
        """The present configuration, merged from all sources."""
        service = self._service.config.endpoints if self._service else ()
        several = [
            msgspec.structs.replace(endpoint, service=name)
            for name, source in self._services.items()
            for endpoint in source.config.endpoints
        ]
        return msgspec.structs.replace(
            self._base,
            endpoints=merge(self._static, self._base.endpoints, service, several),
            policy=self._policy or self._base.policy,
        )

    def refresh(self, apply: Callable[[RouterConfig], None]) -> bool:
        """Poll once; when something changed, call ``apply`` with the whole configuration and return True."""
        for source in self._sources.values():
            if source.refresh():
                self._select_base(source)
        return self._apply(apply)

    async def watch(self, apply: Callable[[RouterConfig], None]) -> None:
        """Call ``apply`` with the whole configuration whenever it changes, for ever."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources.values():
                group.create_task(source.watch(partial(self._source_changed, source, apply)))
            group.create_task(self._retry(apply))

    def live(self) -> dict[str, bool]:
        """Whether each source, by its flag, can be read at the moment."""
        return {name: source.live for name, source in self._sources.items()}

    async def wait_for_sync(self) -> None:
        """Wait until every source was read once, at most ``INITIAL_SYNC_SECONDS``."""
        end = time.monotonic() + INITIAL_SYNC_SECONDS
        while not all(map(self._synced, self._sources.values())) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _synced(self, source: Source) -> bool:
        return (
            self._config_map.reachable if self._config_map is not None and source is self._config_map else source.live
        )

    def _source_changed(self, source: Source, apply: Callable[[RouterConfig], None]) -> bool:
        """Apply the whole configuration if a source changed it."""
        self._select_base(source)
        return self._apply(apply)

    def _select_base(self, source: Source) -> None:
        """Choose the fresher of the file and the ConfigMap, which have the same content, as the base."""
        if source is self._config_map or (
            source is self._config and not (self._config_map is not None and self._config_map.reachable)
        ):
            self._base = source.config

    def _apply(self, apply: Callable[[RouterConfig], None]) -> bool:
        """Apply the present configuration if it is new; True on success. A failure is logged once and retried."""
        current = self.current()
        if current == self._effective:
            self._failed = None
            return False
        try:
            apply(current)
        except Exception:  # whatever it is, the router must go on watching
            if current != self._failed:
                self._failed = current
                logger.exception("the configuration could not be applied; it is retried")
            return False
        self._effective, self._failed = current, None
        logger.info("configuration reloaded")
        return True

    async def _retry(self, apply: Callable[[RouterConfig], None]) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            if self._failed is not None:
                self._apply(apply)
