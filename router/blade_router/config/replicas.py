"""The replicas of this router: each has its share of a limit, and lends what it does not use."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from blade_router.config.sources import WatchedFile

OnChange = Callable[[Sequence[str]], object]
"""Called with the base URLs of the internal routes of all ready replicas."""


class Replicas:
    """The live list of replicas; empty until it is known."""

    def __init__(self) -> None:
        self._members: tuple[str, ...] | None = None

    def update(self, urls: Iterable[str], on_change: OnChange) -> None:
        """Take over the list, and call ``on_change`` if it is new."""
        members = tuple(sorted(urls))
        if members != self._members:  # always the first: the command line may have said another number
            self._members = members
            on_change(members)


class FileReplicas(Replicas):
    """The replicas in a file of endpoints that the local runtime keeps, where there is no Kubernetes API."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = WatchedFile(path)

    @property
    def live(self) -> bool:
        return True

    async def watch(self, on_change: OnChange) -> None:
        """Call ``on_change`` with each new list, for ever."""

        def changed() -> None:
            ready = (endpoint for endpoint in self._file.config.endpoints if not endpoint.draining)
            self.update((endpoint.internal_url or endpoint.url for endpoint in ready), on_change)

        self._file.refresh()
        changed()
        await self._file.watch(changed)
