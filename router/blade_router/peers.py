"""How many routers a service has where there is no API to ask: each takes its part of a limit."""

from collections.abc import Callable
from pathlib import Path

from blade_router.sources import WatchedFile


class CountedPeers:
    """The live count of the routers in a file of endpoints, which the local runtime keeps; 1 until it says more."""

    def __init__(self, path: Path) -> None:
        self.count = 1
        self._told = False
        self._file = WatchedFile(path)

    @property
    def live(self) -> bool:
        return True

    async def follow(self, told: Callable[[int], object]) -> None:
        """Call ``told`` with each new count, for ever."""

        def changed() -> None:
            count = max(1, sum(not endpoint.draining for endpoint in self._file.config.endpoints))
            if count != self.count or not self._told:  # the first always: the command line may have said another
                self.count, self._told = count, True
                told(count)

        self._file.refresh()
        changed()
        await self._file.follow(changed)
