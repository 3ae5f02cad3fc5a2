"""Where the configuration comes from, and how the router follows it without a restart.

A file is looked at five times a second by its metadata (that works on every file system, through the symlinks of a
mounted ConfigMap, and with editors that replace the file); the Kubernetes API tells by itself. Content that is not
valid never takes effect: what was valid before stays, and the log says which field is wrong.
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
from blade_router.config import ConfigError, merge, parse_config

logger = logging.getLogger("blade_router.sources")

POLL_SECONDS = 0.2
AGAIN_SECONDS = 1.0
"""Between two attempts to apply a configuration when that fails."""
SETTLE_SECONDS = 3.0
"""Longest wait for the first answer of the Kubernetes API before requests are served."""


class Source(Protocol):
    """One place a configuration comes from. ``config`` is the last valid one, empty before the first."""

    config: RouterConfig

    @property
    def live(self) -> bool:
        """``config`` is what the place says now, as far as anyone can know."""
        ...

    def refresh(self) -> bool:
        """Look now, where that is of use; True when ``config`` changed."""
        ...

    async def follow(self, told: Callable[[], object]) -> None:
        """Call ``told`` whenever ``config`` may have changed, for ever."""
        ...


class RemoteSource(Source, Protocol):
    """One that can be away."""

    @property
    def answers(self) -> bool:
        """What the place says now is known, whether or not it makes sense."""
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

    async def follow(self, told: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.refresh():
                told()

    def refresh(self) -> bool:
        """As ``load``, but a bad or missing file only leaves a line in the log and everything as it is."""
        try:
            return self.load()
        except FileNotFoundError:
            return False
        except ConfigError as error:
            logger.error("%s; the previous configuration stays in effect", error)
            return False


class Configuration:
    """The sources together.

    Args:
        static: endpoints of the command line.
        config: a file with everything; its ``policy`` and ``models`` count, and its endpoints are added.
        config_map: the same from the API. It is newer than the file, which counts before the first answer and, where
            it changes, while the API is away.
        service: of this source only the endpoints count.
        services: the same where there are several, by name; their endpoints get the name as their service.
        policy: of the command line; overrules all others.
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
        """What could not be applied, and is tried again."""
        named = {"config": config, "config_map": config_map, "service": service}
        self._sources: dict[str, Source] = {name: source for name, source in named.items() if source is not None}
        self._sources |= {f"service {name}": source for name, source in self._services.items()}

    def start(self) -> RouterConfig:
        """The configuration to begin with.

        Raises:
            ConfigError: the ``config`` file is missing or not valid, and there is no other source of the same: a
                person must see that now. A service file with such a fault is waited for instead.
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
        """What the sources say now, put together."""
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
        """Look once; when something changed, call ``apply`` with the whole configuration and return True."""
        for source in self._sources.values():
            if source.refresh():
                self._take(source)
        return self._apply(apply)

    async def follow(self, apply: Callable[[RouterConfig], None]) -> None:
        """Call ``apply`` with the whole configuration whenever it changes, for ever."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources.values():
                group.create_task(source.follow(partial(self._heard, source, apply)))
            group.create_task(self._try_again(apply))

    def live(self) -> dict[str, bool]:
        """Whether each source, by its flag, can be read at the moment."""
        return {name: source.live for name, source in self._sources.items()}

    async def settled(self) -> None:
        """Wait until every source has been looked at, at most ``SETTLE_SECONDS``."""
        end = time.monotonic() + SETTLE_SECONDS
        while not all(map(self._looked_at, self._sources.values())) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _looked_at(self, source: Source) -> bool:
        return self._config_map.answers if self._config_map is not None and source is self._config_map else source.live

    def _heard(self, source: Source, apply: Callable[[RouterConfig], None]) -> bool:
        """A source may have changed: apply the whole if that did."""
        self._take(source)
        return self._apply(apply)

    def _take(self, source: Source) -> None:
        """Of the file and the ConfigMap, which say the same, let the one that knows better count."""
        if source is self._config_map or (
            source is self._config and not (self._config_map is not None and self._config_map.answers)
        ):
            self._base = source.config

    def _apply(self, apply: Callable[[RouterConfig], None]) -> bool:
        """Apply what is new; True when that was done. What fails is logged once, and tried again from time to time."""
        current = self.current()
        if current == self._effective:
            self._failed = None
            return False
        try:
            apply(current)
        except Exception:  # whatever it is, a router must not cease to follow
            if current != self._failed:
                self._failed = current
                logger.exception("the configuration could not be applied; it is tried again")
            return False
        self._effective, self._failed = current, None
        logger.info("configuration reloaded")
        return True

    async def _try_again(self, apply: Callable[[RouterConfig], None]) -> None:
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            if self._failed is not None:
                self._apply(apply)
