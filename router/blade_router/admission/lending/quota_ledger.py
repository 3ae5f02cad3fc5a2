"""The ledger of what the replicas of a router have lent each other of their shares of limits.

A limit of 30 requests a minute and three replicas: each has a share of 10. A client whose one connection ends at the
first of them would get a third of its limit, so a replica whose share is used up borrows what others do not use. What
is lent comes off the lender's share before it is added to the borrower's, and only what the lender has not used in the
window is lent. So in no window more passes than the limit, however clients spread their requests.

A replica tells another the sum of all it has ever lent to it, so a message that is lost or comes twice does no harm:
the next one has the same sum. One that restarts has another id, which begins with empty accounts on both sides. Nothing
here knows of time or the network.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from blade_router.admission.limits import RESOURCES


class Lendable(Protocol):
    """A quota as the ledger sees it."""

    def room(self, resource: int, slot: int) -> int: ...

    def lend(self, rank: int | None, net: list[int]) -> None: ...

    def limit(self, resource: int) -> int: ...

    def asked(self, wanted: int) -> None:
        """Another replica wanted so many more than it could be lent."""


class Shared(Protocol):
    """What the replicas share, by name: the quotas, or the slots of engines."""

    listeners: list[Callable[[], None]]
    """Called when there is more or less of it, or the number of replicas has changed."""

    def lendable(self, name: str) -> Lendable | None: ...

    def __iter__(self) -> Iterator[str]: ...


def find(shared: Iterable[Shared], name: str) -> Lendable | None:
    """What has that name; None where nothing that may be lent has it."""
    return next((found for each in shared if (found := each.lendable(name)) is not None), None)


class Account:
    """What was lent between this replica and another, of one resource of one quota."""

    __slots__ = ("borrowed", "lent")

    def __init__(self) -> None:
        self.borrowed = 0
        """All it has ever lent to this replica, as it said last."""
        self.lent = 0
        """All this replica has ever lent to it."""


class QuotaLedger:
    """The accounts of this replica with all others.

    Args:
        shared: what the replicas share.
    """

    def __init__(self, shared: Sequence[Shared]) -> None:
        self._shared = shared
        self._find = partial(find, shared)
        self._accounts: dict[str, dict[tuple[str, int], Account]] = {}
        """By the other replica's id, then by quota and resource."""
        self._rank: int | None = None

    @property
    def replicas(self) -> set[str]:
        """The ids of those it has accounts with."""
        return set(self._accounts)

    def lend(self, replica: str, name: str, resource: int, wanted: int, slot: int) -> int:
        """Lend ``wanted`` or half of what is not used here, whichever is more; returns all ever lent to that replica.

        Half, so that a client which only this replica does not see seldom waits for it; and half stays for clients
        that come here.
        """
        quota = self._find(name)
        if quota is None or resource not in RESOURCES or not quota.limit(resource):
            return self._account(replica, name, resource).lent if self._has(replica, name, resource) else 0
        account = self._account(replica, name, resource)
        spare = max(0, quota.room(resource, slot))
        given = min(spare, max(wanted, spare // 2)) if wanted > 0 else 0
        if given:
            account.lent += given
            self._apply(name, quota)
        if wanted > given:
            quota.asked(wanted - given)
        return account.lent

    def lent(self, replica: str, name: str, resource: int) -> int:
        """All this replica has ever lent to that one."""
        return self._account(replica, name, resource).lent if self._has(replica, name, resource) else 0

    def borrowed(self, replica: str, name: str, resource: int, total: int) -> None:
        """Take over the sum of all that replica says it has ever lent to this one."""
        quota = self._find(name)
        if quota is None or resource not in RESOURCES:
            return
        account = self._account(replica, name, resource)
        if account.borrowed != total:
            account.borrowed = total
            self._apply(name, quota)

    def forget(self, replica: str) -> None:
        """That replica has gone, and what it had with it: the shares are those of the replicas that are left."""
        accounts = self._accounts.pop(replica, {})
        for name in {name for name, _ in accounts}:
            if (quota := self._find(name)) is not None:
                self._apply(name, quota)

    def configure(self, rank: int | None) -> None:
        """Take over what there is now, and this replica's place among the replicas; None while it is not known."""
        self._rank = rank
        known = {name for each in self._shared for name in each}
        for accounts in self._accounts.values():
            for entry in [entry for entry in accounts if entry[0] not in known]:
                del accounts[entry]
        for name in known:
            if (quota := self._find(name)) is not None:
                self._apply(name, quota)

    def _apply(self, name: str, quota: Lendable) -> None:
        net = [0] * len(RESOURCES)
        for accounts in self._accounts.values():
            for resource in RESOURCES:
                account = accounts.get((name, resource))
                if account is not None:
                    net[resource] += account.borrowed - account.lent
        quota.lend(self._rank, net)

    def _has(self, replica: str, name: str, resource: int) -> bool:
        return (name, resource) in self._accounts.get(replica, {})

    def _account(self, replica: str, name: str, resource: int) -> Account:
        accounts = self._accounts.setdefault(replica, {})
        return accounts.setdefault((name, resource), Account())
