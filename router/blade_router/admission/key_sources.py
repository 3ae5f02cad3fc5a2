"""Sources of API keys, watched for changes: a file, a folder of them, a Secret of the cluster.

An invalid file never takes effect. The keys before it stay, and the log names the file and the field.
"""

import asyncio
import binascii
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from blade_router.admission.keys import Key, parse_keys
from blade_router.config.parsing import ConfigError
from blade_router.kubernetes.api import Cluster
from blade_router.kubernetes.secret import SecretWatcher

logger = logging.getLogger("blade_router.admission")

POLL_SECONDS = 0.5
FIRST_KEYS_SECONDS = 3.0
"""Longest wait for the first keys before requests are served, and refused with a 503."""

OnChange = Callable[[], object]


class WatchedKeys:
    """The keys in a file, or in all files of a folder: a mounted Secret is one.

    Raises:
        ConfigError: from ``load``; says which file and which field.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: tuple[Key, ...] | None = None
        self.live = True
        """What is there now is in effect."""
        self._seen: object = None

    def load(self) -> bool:
        """Read them if something changed since the last call; True when ``keys`` did."""
        try:
            signature = {file.name: _signature(file) for file in self._files()}
            if signature == self._seen:
                return False
            self._seen, self.live = signature, False
            contents = {file.name: file.read_bytes() for file in self._files()}
        except OSError as error:
            self._seen, self.live = None, False
            raise ConfigError(f"{error.filename or self.path}: {error.strerror}") from None
        folder = f"{self.path}/" if self.path.is_dir() else f"{self.path.parent}/"
        keys = _parsed({folder + name: content for name, content in contents.items()})
        changed = keys != self.keys
        self.keys, self.live = keys, True
        return changed

    async def follow(self, on_change: OnChange) -> None:
        complaint = ""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                if self.load():
                    on_change()
                complaint = ""
            except ConfigError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    logger.error("%s; the previous keys stay in effect", error)

    def _files(self) -> list[Path]:
        if self.path.is_dir():
            # Kubernetes keeps the files of a mounted Secret in folders whose names begin with a dot.
            return [file for file in self.path.iterdir() if not file.name.startswith(".") and file.is_file()]
        return [self.path]


def _parsed(files: Mapping[str, bytes]) -> tuple[Key, ...]:
    """The keys in files.

    Raises:
        ConfigError: as ``parse_keys`` does, and where a file is no text.
    """
    for name, content in files.items():
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{name}: byte {error.start} is not UTF-8 ({error.reason})") from None
    return parse_keys(files)


def _signature(path: Path) -> tuple[int, int, int]:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


class SecretKeys:
    """The keys in the Secret ``name`` of the pod's namespace; each of its entries is a file."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.keys: tuple[Key, ...] | None = None
        self._name = name
        self._secret = SecretWatcher(cluster, name)

    @property
    def live(self) -> bool:
        return self._secret.reflector.live

    async def follow(self, on_change: OnChange) -> None:
        await self._secret.watch(lambda content: self._read(content, on_change))

    def _read(self, content: dict[str, str] | None, on_change: OnChange) -> None:
        try:
            if content is None:
                raise ConfigError("it is not there")
            files = {name: binascii.a2b_base64(value) for name, value in content.items()}
            keys = _parsed(files)
        except (ConfigError, binascii.Error) as error:
            logger.error("Secret %s: %s; the previous keys stay in effect", self._name, error)
            return
        if keys != self.keys:
            self.keys = keys
            on_change()


class Keys:
    """Both sources together. The Secret is newer than its mounted files, which are used until the API first responds.

    Args:
        path: a file or a folder.
    """

    def __init__(self, path: WatchedKeys | None, secret: SecretKeys | None) -> None:
        self._path = path
        self._secret = secret

    @property
    def keys(self) -> tuple[Key, ...] | None:
        """None: none are known yet."""
        if self._secret is not None and self._secret.keys is not None:
            return self._secret.keys
        return self._path.keys if self._path is not None else None

    def live(self) -> dict[str, bool]:
        """Whether each source, by its flag, can be read at the moment."""
        found: dict[str, bool] = {}
        if self._path is not None:
            found["keys"] = self._path.live
        if self._secret is not None:
            found["keys_secret"] = self._secret.live
        return found

    async def settled(self) -> None:
        """Wait until some are known, at most ``FIRST_KEYS_SECONDS``."""
        end = time.monotonic() + FIRST_KEYS_SECONDS
        while self.keys is None and time.monotonic() < end:  # noqa: ASYNC110 - sources notify only of valid keys
            await asyncio.sleep(0.01)

    async def follow(self, on_change: OnChange) -> None:
        """Call ``on_change`` whenever ``keys`` may have changed, for ever."""

        def changed() -> None:
            on_change()
            logger.info("%d API keys in effect", len(self.keys or ()))

        async with asyncio.TaskGroup() as group:
            for source in (self._path, self._secret):
                if source is not None:
                    group.create_task(source.follow(changed))
