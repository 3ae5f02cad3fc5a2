"""The quarantine of all worker processes of one router: what one convicts, the others refuse a moment later.

Each worker writes its convictions into a ring in memory that all share, and polls those of the others.
"""

import asyncio
import time
from collections.abc import Callable

from blade_router.endpoints.quarantine import Quarantine
from blade_router.endpoints.shared_health import INTERVAL, Row

SLOTS = 64
"""Convictions a worker's ring holds: more in one interval than engines can be killed."""
_ENTRY = 4
"""Words of a conviction: digest of a request, size of its body, end (monotonic ns); or checksum of a key, ``_KEY``,
when it is too old, and checksum of the endpoint that was lost."""
_KEY = -1
_KEY_SECONDS = 5.0
WIDTH = 1 + SLOTS * _ENTRY
"""Words of a worker: how many convictions it has published, and its ring."""


class SharedQuarantine:
    """This worker's part of the shared quarantine.

    Args:
        quarantine: this worker's; it publishes here, and applies what others publish.
        row: the shared row, ``WIDTH`` numbers wide.
        clock: monotonic, in ns, and the same for all processes of the machine.
    """

    def __init__(self, quarantine: Quarantine, row: Row, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._quarantine = quarantine
        self._row = row
        self._clock = clock
        self._applied = [cell[0] for cell in row.cells]
        quarantine.publish = self.publish
        quarantine.confinement.publish = self.publish_key

    async def follow(self) -> None:
        """Poll what others publish, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.poll()

    def publish(self, digest: int, size: int, seconds: float) -> None:
        """This worker has quarantined a request for so long."""
        self._write(digest, size, seconds)

    def publish_key(self, key: int, lost: int) -> None:
        """This worker has convicted a request of that key when it lost that endpoint."""
        self._write(key, _KEY, _KEY_SECONDS, lost)

    def _write(self, number: int, size: int, seconds: float, lost: int = 0) -> None:
        own = self._row.own
        count = own[0]
        place = 1 + count % SLOTS * _ENTRY
        own[place], own[place + 1], own[place + 3] = number, size, lost
        own[place + 2] = self._clock() + int(seconds * 1e9)
        own[0] = count + 1  # last: before, nobody reads it

    def poll(self) -> None:
        """Apply what others have published since the last poll."""
        for worker, cell in enumerate(self._row.cells):
            count, applied = cell[0], self._applied[worker]
            if count == applied or cell is self._row.own:
                continue
            self._applied[worker] = count
            # A worker that was replaced counts from 0.
            for number in range(max(applied if applied < count else 0, count - SLOTS), count):
                place = 1 + number % SLOTS * _ENTRY
                left = (cell[place + 2] - self._clock()) / 1e9
                if left <= 0:
                    continue
                if cell[place + 1] == _KEY:
                    self._quarantine.confinement.convict(cell[place], cell[place + 3])
                else:
                    self._quarantine.convict(cell[place], cell[place + 1], left)
