"""The number of routers of a service: each takes its part of a limit."""

from collections.abc import Callable
from pathlib import Path

from blade_router.config.sources import WatchedFile


class ReplicaCount:
    """A live replica count; 1 until it is known."""

    def __init__(self) -> None:
        self.count = 1
        self._notified = False

    def update(self, ready: int, on_change: Callable[[int], object]) -> None:
        """Set the count, this router always included, and call ``on_change`` if it is new."""
        count = max(1, ready)
        if count != self.count or not self._notified:  # always the first: the command line may have set another
            self.count, self._notified = count, True
            on_change(count)


class FileReplicaCount(ReplicaCount):
    """The replica count from a file of endpoints that the local runtime keeps, where there is no Kubernetes API."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = WatchedFile(path)

    @property
    def live(self) -> bool:
        return True

    async def watch(self, on_change: Callable[[int], object]) -> None:
        """Call ``on_change`` with each new count, for ever."""

        def changed() -> None:
            self.update(sum(not endpoint.draining for endpoint in self._file.config.endpoints), on_change)

        self._file.refresh()
        changed()
        await self._file.watch(changed)
