"""How many replicas this router has where a file lists them: the local runtime keeps one for every service."""

from collections.abc import Callable
from pathlib import Path

from blade_router.sources import WatchedFile


class WatchedPeers:
    """The endpoints of the router's own service in a file, counted; 1 while there is none."""

    def __init__(self, path: Path) -> None:
        self.count = 1
        self._file = WatchedFile(path)

    @property
    def live(self) -> bool:
        return self._file.live

    async def follow(self, told: Callable[[int], object]) -> None:
        """Call ``told`` with each new count, for ever."""

        def changed() -> None:
            count = max(1, sum(not endpoint.draining for endpoint in self._file.config.endpoints))
            if count != self.count:
                self.count = count
                told(count)

        if self._file.refresh():
            changed()
        await self._file.follow(changed)
