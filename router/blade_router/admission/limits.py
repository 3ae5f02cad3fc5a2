"""Rate limits: requests and tokens per minute and concurrent requests, of a key, of a model, of all clients.

Tokens are reserved when a request comes, from an estimate, and settled when its response has ended. What was
reserved too much is given back to the moment it was taken at; what was too little counts from when it is known.

Each replica of a router has an equal share of a limit. Replicas that know each other lend what they do not use
(``lending.quota_ledger``): that moves the shares, and never changes their sum.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from blade_protocol.routing import Limits
from blade_router.admission.window import SLOT, WINDOW, WORDS, Cell, Window, slot_of
from blade_router.http.errors import Headers, Refused
from blade_router.workers.shared_memory import PrivateRow, RowsExhausted, SharedColumns, SharedMemory, SharedRow

logger = logging.getLogger("blade_router.admission")

NONE = Limits()
_RUNNING = 2 * WORDS
"""Place of the number of requests in flight, after the two windows."""
_CREDIT = _RUNNING + 1
REQUESTS, TOKENS, CONCURRENT = RESOURCES = range(3)
"""What is limited. Of each, the first worker's cell has what this replica has borrowed, less what it has lent."""
_LENDING = len(RESOURCES)
"""After them: 1 while replicas lend each other what they do not use."""
_WIDTH = _CREDIT + _LENDING + 1
MOST_ROWS = 4096
NO_LIMIT = 1 << 62
_REMAINING_REQUESTS, _REMAINING_TOKENS = b"x-ratelimit-remaining-requests", b"x-ratelimit-remaining-tokens"
_RESET = b"%ds" % (WINDOW + SLOT)


class OverLimit(Refused):
    """A limit has no room. ``lacks``: what would have to be borrowed of ``quota``; empty: that would not help."""

    quota: str
    lacks: Sequence[tuple[int, int]]


class Quota:
    """The limits of one key, model or all clients, and what counts against them.

    Args:
        who: for messages, e.g. ``key team-a``.
    """

    def __init__(self, who: str, row: SharedRow | PrivateRow) -> None:
        self.who = who
        self.limits = NONE
        self.retired = False
        self._row = row
        self._own = row.own
        self._requests = _window(row, 0)
        self._tokens = _window(row, WORDS)
        self._credit: Cell = [0] * (_WIDTH - _CREDIT) if isinstance(row, PrivateRow) else row.cells[0][_CREDIT:_WIDTH]
        self._share_of = 1
        self._most_requests = self._most_tokens = self._most_running = NO_LIMIT
        self._fixed: Headers = []
        """The headers that are the same with every response."""

    def set(self, limits: Limits, share: int) -> None:
        """Take these limits, of which this router may use one part of ``share``; what was counted stays."""
        self.limits, self.retired, self._share_of = limits, False, share
        self._most_requests = _part(limits.requests_per_minute, share)
        self._most_tokens = _part(limits.tokens_per_minute, share)
        self._most_running = _part(limits.concurrent, share)
        self._fixed = [
            header
            for what, limit in ((b"requests", limits.requests_per_minute), (b"tokens", limits.tokens_per_minute))
            if limit
            for header in ((b"x-ratelimit-limit-" + what, b"%d" % limit), (b"x-ratelimit-reset-" + what, _RESET))
        ]

    def admits(self, tokens: int, slot: int) -> bool:
        """There is room for a request that may use so many tokens."""
        limits, credit = self.limits, self._credit
        if limits.concurrent and self._row.total(_RUNNING) >= self._most_running + credit[CONCURRENT]:
            return False
        if limits.requests_per_minute and self._requests.used(slot) >= self._most_requests + credit[REQUESTS]:
            return False
        if not limits.tokens_per_minute or tokens <= self._most_tokens + credit[TOKENS] - self._tokens.used(slot):
            return True
        return self._alone(tokens, slot)

    # lending between replicas

    def room(self, resource: int, slot: int) -> int:
        """How much more of it this replica may use; below 0 when the share shrank after it was used."""
        if resource == REQUESTS:
            return self._most_requests + self._credit[REQUESTS] - self._requests.used(slot)
        if resource == TOKENS:
            return self._most_tokens + self._credit[TOKENS] - self._tokens.used(slot)
        return self._most_running + self._credit[CONCURRENT] - self._row.total(_RUNNING)

    def lacks(self, tokens: int, slot: int) -> list[tuple[int, int]]:
        """What a request lacks here that other replicas may have: resources and amounts. Empty: none can help."""
        limit = self.limits.tokens_per_minute
        if not self._credit[_LENDING] or tokens > limit > 0:
            return []
        wanted = ((REQUESTS, 1), (TOKENS, tokens), (CONCURRENT, 1))
        return [
            (resource, amount - room)
            for resource, amount in wanted
            if self.limit(resource) and (room := self.room(resource, slot)) < amount
        ]

    def limit(self, resource: int) -> int:
        """The limit of a resource for all replicas together; 0: none."""
        limits = self.limits
        return (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent)[resource]

    def asked(self, wanted: int) -> None:
        """Another replica lacks so much: what is used here is not returned."""

    def lend(self, rank: int | None, net: Sequence[int]) -> None:
        """Take over this replica's place among the replicas, and what it has borrowed, less what it has lent.

        Only the first worker does. Shares are rounded up where replicas do not know each other, so that a small limit
        admits a request; the first ``rank``s get one more where they do, so that the sum is the limit.
        """
        for resource in RESOURCES:
            limit, rounding = self.limit(resource), 0
            if rank is not None and limit % self._share_of:
                rounding = 0 if rank < limit % self._share_of else -1
            self._credit[resource] = net[resource] + rounding if limit else 0
        self._credit[_LENDING] = int(rank is not None)

    def take(self, tokens: int, slot: int) -> None:
        """A request begins."""
        self._own[_RUNNING] += 1
        self._requests.add(1, slot)
        self._tokens.add(tokens, slot)

    def undo(self, tokens: int, then: int, slot: int) -> None:
        """A request that began in the slot ``then`` was not admitted after all."""
        self._own[_RUNNING] -= 1
        self._requests.give_back(1, then, slot)
        self._tokens.give_back(tokens, then, slot)

    def settle(self, reserved: int, used: int, then: int, slot: int) -> None:
        """A request that began in the slot ``then`` has ended."""
        self._own[_RUNNING] -= 1
        if used < reserved:
            self._tokens.give_back(reserved - used, then, slot)
        elif used > reserved:
            self._tokens.add(used - reserved, slot)

    def refusal(self, tokens: int, now: float) -> OverLimit:
        """Why a request is not admitted, and when it would be."""
        slot = slot_of(now)
        limits = self.limits
        if tokens > limits.tokens_per_minute > 0:
            refusal = OverLimit(
                429,
                f"Request too large for {self.who} on tokens per minute (TPM): Limit {limits.tokens_per_minute}, "
                f"Requested {tokens}. The input or output tokens must be reduced in order to run successfully.",
                code="rate_limit_exceeded",
                kind="tokens",
                # OpenAI's clients read this before they retry.
                headers=[(b"x-should-retry", b"false"), *self.headers(slot)],
            )
            refusal.quota, refusal.lacks = self.who, ()
            return refusal
        waits: list[tuple[float, str, str]] = []
        most_running, most_requests = self._most(CONCURRENT), self._most(REQUESTS)
        if (running := self._row.total(_RUNNING)) >= most_running:
            text = f"concurrent requests: Limit {limits.concurrent}, Running {running}"
            waits.append((1.0, text, "requests"))
        if (used := self._requests.used(slot)) >= most_requests:
            wait = self._requests.free_in(used + 1 - most_requests, now)
            text = f"requests per minute (RPM): Limit {limits.requests_per_minute}, Used {used}, Requested 1"
            waits.append((wait, text, "requests"))
        used, most_tokens = self._tokens.used(slot), self._most(TOKENS)
        if used + tokens > most_tokens and not self._alone(tokens, slot):
            wait = self._tokens.free_in(min(used, used + tokens - most_tokens), now)
            text = f"tokens per minute (TPM): Limit {limits.tokens_per_minute}, Used {used}, Requested {tokens}"
            waits.append((wait, text, "tokens"))
        # Empty only when room was made in this very moment by another worker.
        wait, text, kind = max(waits, default=(1.0, "requests", "requests"))
        seconds = max(1, math.ceil(wait))
        refusal = OverLimit(
            429,
            f"Rate limit reached for {self.who} on {text}. Please try again in {seconds}s.",
            code="rate_limit_exceeded",
            kind=kind,
            retry_after=seconds,
            headers=self.headers(slot),
        )
        refusal.quota, refusal.lacks = self.who, self.lacks(tokens, slot)
        return refusal

    def headers(self, slot: int) -> Headers:
        """OpenAI's rate-limit headers: the limits, what remains of them, and when all of it is back.

        That is always the whole window: the request that gets these headers has just been counted.
        """
        found = list(self._fixed)
        if self.limits.requests_per_minute:
            left = self.room(REQUESTS, slot)
            found.append((_REMAINING_REQUESTS, b"%d" % left if left > 0 else b"0"))
        if self.limits.tokens_per_minute:
            left = self.room(TOKENS, slot)
            found.append((_REMAINING_TOKENS, b"%d" % left if left > 0 else b"0"))
        return found

    @property
    def idle(self) -> bool:
        """None of this process's requests is in flight."""
        return not self._own[_RUNNING]

    def close(self) -> None:
        self._row.close()

    def _most(self, resource: int) -> int:
        most = (self._most_requests, self._most_tokens, self._most_running)[resource]
        return most if most == NO_LIMIT else most + self._credit[resource]

    def _alone(self, tokens: int, slot: int) -> bool:
        """More than one replica's part, but not more than the whole limit: passes when nothing else is there.

        Where replicas lend each other their shares, such a request borrows.
        """
        return (
            not self._credit[_LENDING]
            and self._most_tokens < tokens <= self.limits.tokens_per_minute
            and self._tokens.used(slot) <= 0
        )


class Quotas:
    """The quotas of all that have limits, by name. One that stays keeps its counts, whatever else changes."""

    def __init__(self, memory: SharedMemory | None = None) -> None:
        self.replicas = 1
        self.listeners: list[Callable[[], None]] = []
        """Called when limits or the number of replicas have changed."""
        self._all: dict[str, Quota] = {}
        self._columns: SharedColumns | None = None
        self._workers = 1
        if memory is not None and memory.workers > 1:
            # Most of the memory: what else is counted there is one number each.
            rows = len(memory.words) * 3 // 4 // (memory.workers * (_WIDTH + 1) + 1)
            self._columns = SharedColumns(memory, "limits", min(MOST_ROWS, rows), _WIDTH)
            self._workers = memory.workers
        self._alone: set[str] = set()
        """Names for which no shared row was left: each worker has a part of their limits for itself."""

    def configure(self, wanted: Mapping[str, Limits]) -> dict[str, Quota]:
        """Exactly these have limits from now on; those of ``wanted`` without any get no quota."""
        found: dict[str, Quota] = {}
        for name, limits in wanted.items():
            if limits != NONE:
                quota = self._all.get(name) or self._open(name)
                quota.set(limits, self._share(name))
                found[name] = quota
        for name, quota in list(self._all.items()):
            if name not in found:
                quota.retired = True
                self.drop(quota)
        self._notify()
        return found

    def split(self, replicas: int) -> None:
        """Share the limits between so many routers from now on."""
        self.replicas = replicas
        for name, quota in self._all.items():
            if not quota.retired:
                quota.set(quota.limits, self._share(name))
        self._notify()

    def lendable(self, name: str) -> Quota | None:
        """The quota of that name whose share may be lent: not one that workers split for want of memory."""
        quota = self._all.get(name)
        return None if quota is None or quota.retired or name in self._alone else quota

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def _notify(self) -> None:
        for listener in self.listeners:
            listener()

    def drop(self, quota: Quota) -> None:
        """Free the row of one that is no longer wanted, once its last request has ended."""
        if quota.retired and quota.idle and self._all.pop(quota.who, None) is not None:
            self._alone.discard(quota.who)
            quota.close()

    def _open(self, name: str) -> Quota:
        row: SharedRow | PrivateRow = PrivateRow(_WIDTH)
        if self._columns is not None:
            try:
                row = self._columns.open(name)
            except RowsExhausted:
                self._alone.add(name)
                logger.warning("no shared memory is left for the limits of %s; workers split them instead", name)
        quota = self._all[name] = Quota(name, row)
        return quota

    def _share(self, name: str) -> int:
        return self.replicas * (self._workers if name in self._alone else 1)


def _window(row: SharedRow | PrivateRow, start: int) -> Window:
    if isinstance(row, PrivateRow):
        own = [0] * WORDS
        return Window([own], own)
    cells = [cell[start : start + WORDS] for cell in row.cells]
    return Window(cells, row.own[start : start + WORDS])


def _part(limit: int, share: int) -> int:
    """One router's part, rounded up so that a small limit still admits a request."""
    return -(-limit // share) if limit else NO_LIMIT
