"""Where the configuration comes from, and how the router follows it without a restart.

A file is looked at five times a second by its metadata (that works on every file system, through the symlinks of a
mounted ConfigMap, and with editors that replace the file). Content that is not valid never takes effect: what was
valid before stays, and the log says which field is wrong.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from blade_protocol.routing import EndpointConfig, PolicyName, RouterConfig
from blade_router.config import ConfigError, merge, parse_config

logger = logging.getLogger("blade_router.sources")

POLL_SECONDS = 0.2


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
        service: a file of which only the endpoints count. It may appear later.
        policy: of the command line; overrules the file's.
    """

    def __init__(
        self,
        static: tuple[EndpointConfig, ...] = (),
        *,
        config: Path | None = None,
        service: Path | None = None,
        policy: PolicyName | None = None,
    ) -> None:
        self._static = static
        self._config = WatchedFile(config) if config else None
        self._service = WatchedFile(service) if service else None
        self._policy = policy

    def start(self) -> RouterConfig:
        """The configuration to begin with.

        Raises:
            ConfigError: the ``config`` file is missing or not valid: a person must see that now. A service file with
                such a fault is waited for instead.
        """
        if self._config is not None:
            try:
                self._config.load()
            except FileNotFoundError:
                raise ConfigError(f"{self._config.path}: no such file") from None
        if self._service is not None:
            self._service.refresh()
        return self.current()

    def current(self) -> RouterConfig:
        base = self._config.config if self._config else RouterConfig()
        service = self._service.config.endpoints if self._service else ()
        return msgspec.structs.replace(
            base,
            endpoints=merge(self._static, base.endpoints, service),
            policy=self._policy or base.policy,
        )

    def refresh(self, apply: Callable[[RouterConfig], None]) -> bool:
        """Look once; when something changed, call ``apply`` with the whole configuration and return True."""
        changed = [file.refresh() for file in (self._config, self._service) if file is not None]
        if not any(changed):
            return False
        apply(self.current())
        logger.info("configuration reloaded")
        return True

    async def follow(self, apply: Callable[[RouterConfig], None]) -> None:
        """``refresh`` for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.refresh(apply)
