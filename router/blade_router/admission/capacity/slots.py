"""The slots of a service's engines: how many requests they run, and which of them a process and a key may have.

**Replicas** of a router share the slots as they share limits: equally, and each lends what it does not use
(``lending.quota_ledger``), but for a reserve: a request that comes to it finds a slot. One that has borrowed returns
what it has beyond its share as its requests end, when another one asks for it.

**Workers** of one replica share through memory: any may use all, but while another one has requests waiting, each has
its part.

**Keys**: one key must not hold all slots with long requests, or another one's first would wait until one ends. A key
gets a further slot while it has fewer than a multiple of those that are free (dynamic thresholds, as switches share
buffers between ports): alone it comes to ``key_share`` of all, two of them share nearly all, and some are always free.
Beyond its fair share it leaves free what the others needed of late (``recent_demand``).
"""

import logging
import math
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

from blade_protocol.routing import QueueConfig
from blade_router.admission.capacity.engine_limit import EngineLimit
from blade_router.admission.capacity.recent_demand import HALF_SECONDS, RecentDemand
from blade_router.admission.limits import CONCURRENT
from blade_router.admission.window import Cell
from blade_router.endpoints.endpoint import UNLIMITED, Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.workers.shared_memory import PrivateRow, RowsExhausted, SharedColumns, SharedRow

logger = logging.getLogger("blade_router.admission")

BUCKETS = 256
"""Counters of keys, by their names' checksums: two keys that share one are taken for one where slots are short."""
_RUNNING, _WAITING, _PEAK, _BUSIEST, _BUSIEST_PEAK, _PEAK_UNTIL, _CREDIT, _RETURNING, _RETURN_UNTIL, _KEYS = range(10)
"""Places of a worker's numbers: requests that have slots and those that wait; the recent demand of all keys but the
busiest, which key that is (the place of its requests) and its demand, valid until then (ms); in the first worker's,
slots borrowed from other replicas less those lent, and how many are being returned until when (ms); then requests by
key."""
WIDTH = _KEYS + BUCKETS
SHARED_SERVICES = 4
"""Services whose slots workers share; of others each worker has an equal part."""
RESERVE = 8
"""A replica does not lend one part in so many of its share."""
SMALL_PART = 0.5
"""A key with less than this part of its fair share does not have to leave more than one slot free."""
REPORT_SECONDS = 15.0
"""After which the report of an engine says nothing of other routers' requests on it any more."""
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
        self._demand = RecentDemand(clock)
        self._confined = False
        """Some keys are confined to some of the engines, ..."""
        self._confined_share = 0
        """... which have so many slots: these keys get no others, ..."""
        self._withheld = 0
        """... and others do not get so many of them: none of them where no other engine is there."""
        self._confined_buckets: set[int] = set()
        """Places of these keys' requests."""

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
        limits = [self._limits[endpoint].update(endpoint.report, endpoint.in_flight) for endpoint in serving]
        if fixed:
            limits = [fixed] * len(serving)
        self.total = sum(limits) if fixed else self._reported(serving, limits)
        self._set_room(serving, limits)
        if not self.total or self.total == UNLIMITED:
            self.share = self.total
        else:
            self.share = max(1, self._equal_share() + self._first[_CREDIT]) + self._beyond
        self._demand.total = self.share
        self._confine(serving, limits)

    def _set_room(self, serving: Collection[Endpoint], limits: Sequence[int]) -> None:
        """Let policies know what each engine takes of this process's requests before they wait in it."""
        several = self._several or self._routers > 1
        oldest = self._clock() - REPORT_SECONDS
        for endpoint, limit in zip(serving, limits, strict=True):
            fresh = several and endpoint.report.reported_at > oldest
            others = self._limits[endpoint].others if fresh else 0
            endpoint.room = limit - others if self._config.enabled else UNLIMITED

    def _confine(self, serving: Collection[Endpoint], limits: Sequence[int]) -> None:
        """Find the slots that confined keys share."""
        confinement = self._endpoints.confinement
        part = confinement.part(self._endpoints.of_service(self._service)) if confinement.active else []
        self._confined = bool(part)
        if not part:
            return
        slots = sum([limit for endpoint, limit in zip(serving, limits, strict=True) if endpoint in part])
        limited = 0 < self.total < UNLIMITED
        self._confined_share = max(slots > 0, slots * self.share // self.total) if limited else UNLIMITED
        elsewhere = any(endpoint not in part for endpoint in serving)
        self._withheld = self._confined_share if limited and elsewhere else 0
        self._confined_buckets = {_KEYS + number % BUCKETS for number in confinement.confined_keys()}

    def _reported(self, serving: Collection[Endpoint], limits: Sequence[int]) -> int:
        """The slots of these engines; one that has yet to report counts as the smallest of the others."""
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
        if self._confined:
            if key and self._endpoints.confinement.is_confined(key):
                return free > 0 and self._held(key) < self._confined_share
            if self._withheld:
                free -= max(0, self._withheld - self._held_by_confined())
        if free < 1:
            return False
        if self._multiple == math.inf or not key:
            return True
        held = self._held(key)
        if not held:
            return True
        share = self._demand.fair_share(key, weight)
        if held >= self._multiple * weight * (free - 1) and (free < 2 or held >= SMALL_PART * share):
            return False
        return held < share or free > self._kept_from(key, held, share)

    def _held(self, key: str) -> int:
        bucket = _bucket(key)
        return sum([cell[bucket] for cell in self._cells]) if self._several else self._own[bucket]

    def _held_by_confined(self) -> int:
        return sum([cell[bucket] for cell in self._cells for bucket in self._confined_buckets])

    def confines(self, keys: Iterable[str]) -> bool:
        """All of these keys are confined: more slots elsewhere are of no use to them."""
        return self._confined and all(map(self._endpoints.confinement.is_confined, keys))

    def _kept_from(self, key: str, held: int, share: float) -> float:
        """Slots that stay free for others than this key, which holds so many: what they need, and one for a new one."""
        now = self._clock() * 1000
        others = -held
        peak = 0
        bucket = _bucket(key)
        for cell in self._cells:
            others += cell[_RUNNING]
            if cell[_PEAK_UNTIL] > now:
                peak += cell[_PEAK]
                if cell is not self._own and cell[_BUSIEST] != bucket:
                    peak += min(cell[_BUSIEST_PEAK], int(self.share - share))
        # What one of them had while this key had nothing is not in the sum.
        return max(peak, min(self._demand.peak_of_another(key), self.share - share)) + 1 - others

    def take(self, key: str, weight: float = 1.0) -> None:
        own = self._own
        self.running = own[_RUNNING] = own[_RUNNING] + 1
        if key:
            own[_bucket(key)] += 1
            self._observe(key, weight)

    def release(self, key: str) -> None:
        own = self._own
        self.running = own[_RUNNING] = own[_RUNNING] - 1
        if key:
            own[_bucket(key)] -= 1
            self._demand.remove(key)

    def wait(self, key: str, weight: float) -> None:
        """A request of that key waits for a slot."""
        if key:
            self._observe(key, weight)

    def wait_no_more(self, key: str) -> None:
        """A request of that key does not wait any more."""
        self._demand.remove(key)

    def _observe(self, key: str, weight: float) -> None:
        if self._multiple < math.inf:
            demand = self._demand
            demand.add(key, weight)
            own = self._own
            own[_PEAK] = demand.peak()
            own[_PEAK_UNTIL] = int((self._clock() + HALF_SECONDS) * 1000)
            if self._several:
                busiest, own[_BUSIEST_PEAK] = demand.busiest()
                own[_BUSIEST] = _bucket(busiest)

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
