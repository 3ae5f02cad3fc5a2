"""Confinement of API keys whose requests kill engines: what they break is theirs, and the others' engines live.

A request that was lost with two engines is refused (``quarantine``), but the next one of the same client may differ in
one character. So a key that was convicted is on *probation*: the first engine that is lost with a request of it is the
last. It is *confined*, for seconds at first and with the next conviction for a minute: its requests go to a quarter of
the service's engines, the one that was lost last among them, and those of other keys go to the rest. Each further
confinement takes twice as long. All confined keys share one quarter.

Without keys nobody is confined: an address is no client where a gateway stands in front.
"""

import logging
import time
import zlib
from collections.abc import Callable, Sequence

from blade_router.endpoints.endpoint import Endpoint

logger = logging.getLogger("blade_router.endpoints")

PROBATION_SECONDS = 900.0
"""How long after a conviction, or the end of a confinement, a key stays on probation."""
FIRST_SECONDS = 5.0
"""Seconds for which the first conviction confines a key: more such requests may be on their way."""
CONFINED_SECONDS = 60.0
MAX_CONFINED_SECONDS = 960.0
"""Seconds of the first and of the longest confinement."""
SAME_CRASH_SECONDS = 2.0
"""Convictions in which the same engine was lost within that time are one."""
PART = 4
"""Confined keys have one engine in so many."""
MAX_KEYS = 256
"""Keys that are remembered; beyond them the one convicted longest ago is forgotten."""


class Record:
    """What is known of one key."""

    __slots__ = ("confinements", "convicted_at", "lost", "until")

    def __init__(self) -> None:
        self.convicted_at = 0.0
        self.until = 0.0
        """End of the confinement; 0: none yet."""
        self.confinements = 0
        self.lost: list[int] = []
        """Checksums of names of endpoints, the one that was lost last first."""


class Confinement:
    """The keys that are on probation or confined, in this process.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.publish: Callable[[int, int], None] = lambda key, endpoint: None
        """Notifies the other workers of a conviction: checksums of a key and of the endpoint that was lost."""
        self._clock = clock
        self._records: dict[int, Record] = {}
        """By the checksum of the key's name."""
        self._confined_until = 0.0
        """End of the last confinement."""
        self._suspects = 0
        self._tried_on: dict[str, list[Endpoint]] = {}
        """Where suspected requests of a key are tried; once for each of them."""

    @property
    def needed(self) -> bool:
        """Not every request may go everywhere."""
        return self._suspects > 0 or self._confined_until > 0.0

    @property
    def active(self) -> bool:
        """Some key is confined."""
        return self._confined_until > 0.0 and self._clock() < self._confined_until

    def confined_keys(self) -> list[int]:
        """The checksums of the confined keys."""
        now = self._clock()
        return [key for key, record in self._records.items() if record.until > now]

    def on_probation(self, key: str) -> bool:
        """A request of that key that is lost with an engine is not tried again."""
        record = self._records.get(checksum(key)) if key and self._records else None
        return record is not None and self._clock() < max(record.convicted_at, record.until) + PROBATION_SECONDS

    def convicted(self, key: str, endpoint: Endpoint) -> None:
        """A request of that key was convicted when ``endpoint`` was lost."""
        if not key:
            return
        number, lost = checksum(key), checksum(endpoint.name)
        if self.convict(number, lost):
            logger.warning("requests of key %r kill engines: it is confined to a part of them for a while", key)
        self.publish(number, lost)

    def convict(self, key: int, lost: int) -> bool:
        """The same by checksums, as other workers say it. True when a confinement begins."""
        now = self._clock()
        record = self._records.get(key)
        if record is not None and record.lost[0] == lost and now - record.convicted_at < SAME_CRASH_SECONDS:
            return False  # several requests were lost in it, or several workers tell of it
        if record is None or now >= max(record.convicted_at, record.until) + PROBATION_SECONDS:
            record = self._records[key] = Record()
            record.until = now + FIRST_SECONDS
            begins = False
            if len(self._records) > MAX_KEYS:
                del self._records[min(self._records, key=lambda each: self._records[each].convicted_at or now)]
        else:
            begins = not record.confinements or now >= record.until
            if begins:
                record.until = now + min(CONFINED_SECONDS * 2.0**record.confinements, MAX_CONFINED_SECONDS)
                record.confinements = min(record.confinements + 1, 16)
        self._confined_until = max(self._confined_until, record.until)
        record.convicted_at = now
        record.lost = [lost, *[each for each in record.lost if each != lost]][:PART]
        return begins

    def is_confined(self, key: str) -> bool:
        """Requests of that key may not go everywhere."""
        record = self._records.get(checksum(key)) if key else None
        return record is not None and record.until > self._clock()

    def part(self, service: Sequence[Endpoint]) -> list[Endpoint]:
        """The endpoints of a service that confined keys share; none where it has one only, or lost none to them."""
        if len(service) < 2 or not self.active:
            return []
        now = self._clock()
        numbers = [(checksum(endpoint.name), endpoint) for endpoint in service]
        known = {number for number, _ in numbers}
        for record in self._records.values():
            if record.until > now and any(lost in known for lost in record.lost):
                ranks = {lost: rank for rank, lost in enumerate(record.lost)}
                numbers.sort(key=lambda each: (ranks.get(each[0], PART), each[0]))
                return [endpoint for _, endpoint in numbers[: max(1, len(numbers) // PART)]]
        return []

    def try_on(self, endpoint: Endpoint, key: str) -> None:
        """A suspected request of that key is tried on an endpoint."""
        endpoint.suspects += 1
        self._suspects += 1
        if key:
            self._tried_on.setdefault(key, []).append(endpoint)

    def tried(self, endpoint: Endpoint, key: str) -> None:
        """It is tried no more."""
        endpoint.suspects -= 1
        self._suspects -= 1
        if key:
            places = self._tried_on[key]
            places.remove(endpoint)
            if not places:
                del self._tried_on[key]

    def allowed(self, candidates: list[Endpoint], service: Sequence[Endpoint], key: str) -> list[Endpoint]:
        """Those of ``candidates`` that a request of this key may go to: perhaps none.

        An engine on which a suspected request is tried may be lost at any moment: nobody joins it who need not, but
        requests of the same key, which may be like it, go nowhere else.
        """
        part = self.part(service)
        if part:
            if self.is_confined(key):
                return [endpoint for endpoint in candidates if endpoint in part]
            candidates = [endpoint for endpoint in candidates if endpoint not in part] or candidates
        if self._suspects:
            if key and (places := self._tried_on.get(key)) and (own := [each for each in candidates if each in places]):
                return own
            clear = [
                endpoint for endpoint in candidates if not endpoint.suspects and endpoint.in_flight < endpoint.room
            ]
            if 2 * len(clear) >= len(candidates):  # else they would all come together there
                return clear
        return candidates


def checksum(name: str) -> int:
    """The number that stands for a name, in all processes."""
    return zlib.crc32(name.encode())
