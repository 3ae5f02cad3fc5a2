"""The slots of a service's engines: how many requests they run, and which of them a process and a key may have.

**Replicas** of a router share the slots as they share limits: equally, and each lends what it does not use
(``lending.quota_ledger``), but for a reserve: a request that comes to it finds a slot. One that has borrowed returns
what it has beyond its share as its requests end, when another one asks for it.

**Workers** of one replica share through memory: any may use all, but while another one has requests waiting, each has
its part.

**Keys**: one key must not hold all slots with long requests, or another one's first would wait until one ends. A key
gets a further slot while it has fewer than a multiple of those that are free (dynamic thresholds, as switches share
buffers between ports): alone it comes to ``key_share`` of all, two of them share nearly all, and some are always free.
"""

import logging
import math
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from blade_protocol.routing import QueueConfig
from blade_router.admission.capacity.engine_limit import UNLIMITED, EngineLimit
from blade_router.admission.limits import CONCURRENT
from blade_router.admission.window import Cell
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.workers.shared_memory import PrivateRow, RowsExhausted, SharedColumns, SharedRow

logger = logging.getLogger("blade_router.admission")

BUCKETS = 256
"""Counters of keys, by their names' checksums: two keys that share one are taken for one where slots are short."""
_RUNNING, _WAITING, _CREDIT, _RETURNING, _RETURN_UNTIL, _KEYS = range(6)
"""Places of a worker's numbers: requests that have slots and those that wait; in the first worker's, slots borrowed
from other replicas less those lent, and how many are being returned until when (ms); then requests by key."""
WIDTH = _KEYS + BUCKETS
SHARED_SERVICES = 4
"""Services whose slots workers share; of others each worker has an equal part."""
RESERVE = 8
"""A replica does not lend one part in so many of its share."""
RETURN_SECONDS = 0.5
"""How long a replica takes no slot beyond its share after another one asked for some."""


class Slots:
    """The slots of one service.

    Args:
        row: this process's numbers, and those of the other workers.
    """

    def __init__(
        self,
        endpoints: EndpointSet,
        service: str,
        row: SharedRow | PrivateRow,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"slots of {service or 'engines'}"
        self.total = 0
        """Of all engines; 0: no engine is there."""
        self.engines = 0
        """Those that share the load."""
        self.share = 0
        """Those this replica may use, borrowed ones among them."""
        self.running = 0
        """Requests of this process that have one."""
        self._endpoints = endpoints
        self._service = service
        # A list where there is no other worker: three times as fast.
        self._cells: Sequence[Cell] = [[0] * WIDTH] if isinstance(row, PrivateRow) else row.cells
        self._own: Cell = self._cells[0] if isinstance(row, PrivateRow) else row.own
        self._first = self._cells[0]
        self._several = len(self._cells) > 1
        self._clock = clock
        self._config = QueueConfig()
        self._limits: dict[Endpoint, EngineLimit] = {}
        self._beyond = 0
        """Requests of this process that are with engines which take no more: draining, down or removed."""
        self._routers = 1
        self._rank: int | None = None
        self._multiple = math.inf

    def configure(self, config: QueueConfig, routers: int, *, several_keys: bool) -> None:
        """Take over new limits.

        Args:
            routers: so many share the slots, unless they lend each other theirs: each has an equal part.
            several_keys: there are keys whose requests must not keep each other out.
        """
        self._config = config
        self._routers = max(1, routers)
        shared = several_keys and config.key_share < 1.0
        self._multiple = config.key_share / (1.0 - config.key_share) if shared else math.inf
        self.update()

    def update(self) -> None:
        """Take over what engines have reported, and who is there."""
        serving = self._endpoints.serving(self._service)
        self.engines = len(serving)
        fixed = self._config.endpoint_requests
        for endpoint in serving:
            self._limits.setdefault(endpoint, EngineLimit())
        self._limits = {each: limit for each, limit in self._limits.items() if each.in_flight or not each.removed}
        self._beyond = sum([endpoint.in_flight for endpoint in self._limits if endpoint not in serving])
        self.total = fixed * len(serving) if fixed else self._reported(serving)
        if not self.total or self.total == UNLIMITED:
            self.share = self.total
        else:
            self.share = max(1, self._equal_share() + self._first[_CREDIT]) + self._beyond

    def _reported(self, serving: Collection[Endpoint]) -> int:
        """The slots of these engines; one that has yet to report counts as the smallest of the others."""
        limits = [self._limits[endpoint].update(endpoint.report) for endpoint in serving]
        known = [limit for limit, endpoint in zip(limits, serving, strict=True) if endpoint.report.reported_at]
        if UNLIMITED in known or not known:
            return UNLIMITED if limits else 0
        return sum(known) + min(known) * (len(limits) - len(known))

    # slots of requests

    def free(self) -> int:
        """Slots this process may give to requests now; none while other workers wait for their part of them."""
        running = self.running
        if self._several:
            running, others = 0, 0
            for cell in self._cells:
                running += cell[_RUNNING]
                if cell[_WAITING] and cell is not self._own:
                    others += 1
            if others and self.running >= -(-self.share // (others + 1)):
                return 0
        first = self._first
        if first[_RETURN_UNTIL] and self._clock() * 1000 < first[_RETURN_UNTIL]:
            return self.share - running - first[_RETURNING]
        return self.share - running

    def admits(self, key: str, weight: float, free: int) -> bool:
        """A key may have one of so many free slots."""
        if free < 1:
            return False
        if self._multiple == math.inf or not key:
            return True
        bucket = _bucket(key)
        held = sum([cell[bucket] for cell in self._cells]) if self._several else self._own[bucket]
        return not held or held < self._multiple * weight * (free - 1)

    def take(self, key: str) -> None:
        own = self._own
        self.running = own[_RUNNING] = own[_RUNNING] + 1
        if key:
            own[_bucket(key)] += 1

    def release(self, key: str) -> None:
        own = self._own
        self.running = own[_RUNNING] = own[_RUNNING] - 1
        if key:
            own[_bucket(key)] -= 1

    def set_waiting(self, requests: int) -> None:
        """So many requests of this process wait for a slot."""
        self._own[_WAITING] = requests

    @property
    def part(self) -> int:
        """This process's part of the share, which adds up to it over all workers; 0 where there is no limit."""
        if self.total in (0, UNLIMITED):
            return 0
        return max(1, self.share // len(self._cells))

    @property
    def workers(self) -> int:
        """Processes of this replica that share them."""
        return len(self._cells)

    # lending between replicas

    def limit(self, resource: int) -> int:
        """All slots; 0 where they are not lent."""
        return self.total if resource == CONCURRENT and self.total < UNLIMITED else 0

    def room(self, resource: int, slot: int) -> int:
        """Slots that may be lent."""
        if not self.limit(resource):
            return 0
        running = sum(cell[_RUNNING] for cell in self._cells)
        equal = self._equal_share()
        return self.share - running - -(-equal // RESERVE)

    def asked(self, wanted: int) -> None:
        """Another replica lacks slots: return those beyond the own share to it, as requests end."""
        beyond = self.share - self._beyond - self._equal_share()
        if beyond > 0:
            self._first[_RETURNING] = min(wanted, beyond)
            self._first[_RETURN_UNTIL] = int((self._clock() + RETURN_SECONDS) * 1000)

    def lend(self, rank: int | None, net: Sequence[int]) -> None:
        """Take over the place among the replicas, and the slots borrowed, less those lent; see ``Quota.lend``."""
        self._rank = rank
        self._first[_CREDIT] = net[CONCURRENT]
        self.update()

    def _equal_share(self) -> int:
        share, rest = divmod(self.total, self._routers)
        return share + (self._rank is not None and self._rank < rest)


@lru_cache(4096)
def _bucket(key: str) -> int:
    return _KEYS + zlib.crc32(key.encode()) % BUCKETS


def open_row(columns: SharedColumns | None, service: str) -> SharedRow | PrivateRow:
    """The row of a service's slots, which workers share where there is room for it."""
    if columns is not None:
        try:
            return columns.open(service)
        except RowsExhausted:
            logger.warning("no shared memory is left for the slots of %s; workers split them", service)
    return PrivateRow(WIDTH)
