"""Replicas that lend each other shares of a limit: whatever is lent, lost or forgotten, the sum stays the limit."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_protocol.routing import Limits
from blade_router.admission.lending.quota_ledger import QuotaLedger
from blade_router.admission.limits import _RUNNING, CONCURRENT, REQUESTS, TOKENS, Quota, Quotas

KEY = "key a"
SLOT = 500


class Fleet:
    """The ledgers of all replicas of a router, which borrow from each other without a network."""

    def __init__(self, replicas: int, limits: Limits) -> None:
        self.all: list[Quotas] = [Quotas() for _ in range(replicas)]
        self.ledgers = [QuotaLedger([quotas]) for quotas in self.all]
        for rank, (quotas, ledger) in enumerate(zip(self.all, self.ledgers, strict=True)):
            quotas.configure({KEY: limits})
            quotas.split(replicas)
            ledger.configure(rank)

    def quota(self, replica: int) -> Quota:
        found = self.all[replica].lendable(KEY)
        assert found is not None
        return found

    def borrow(
        self,
        replica: int,
        lender: int,
        resource: int,
        wanted: int,
        *,
        slot: int = SLOT,
        lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """One message, and its reply; either may be lost."""
        own, other = self.ledgers[replica], self.ledgers[lender]
        lent = own.lent(str(lender), KEY, resource)
        if lost():
            return
        other.borrowed(str(replica), KEY, resource, lent)
        total = other.lend(str(replica), KEY, resource, wanted, slot)
        if not lost():
            own.borrowed(str(lender), KEY, resource, total)

    def request(self, replica: int, tokens: int = 1, *, slot: int = SLOT) -> bool:
        """One request to a replica, which borrows from all others what it lacks."""
        quota = self.quota(replica)
        while not quota.admits(tokens, slot):
            lacks = quota.lacks(tokens, slot)
            before = [quota.room(resource, slot) for resource, _ in lacks]
            for resource, amount in lacks:
                for lender in range(len(self.all)):
                    if lender != replica:
                        self.borrow(replica, lender, resource, amount, slot=slot)
            if not any(quota.room(lack[0], slot) > room for lack, room in zip(lacks, before, strict=True)):
                return False
        quota.take(tokens, slot)
        return True

    def shares(self, resource: int) -> int:
        """What all replicas together may use."""
        used = {REQUESTS: lambda quota: quota._requests.used(SLOT), TOKENS: lambda quota: quota._tokens.used(SLOT)}
        running: Callable[[Quota], int] = lambda quota: quota._row.total(_RUNNING)  # noqa: E731
        return sum(
            self.quota(at).room(resource, SLOT) + used.get(resource, running)(self.quota(at))
            for at in range(len(self.all))
        )


@pytest.mark.parametrize("limit", [1, 2, 30, 31])
def test_one_connection_gets_the_whole_limit(limit: int) -> None:
    fleet = Fleet(3, Limits(requests_per_minute=limit))
    assert sum(fleet.request(1) for _ in range(100)) == limit


@pytest.mark.parametrize("limit", [1, 2, 30, 31])
def test_all_replicas_together_get_no_more(limit: int) -> None:
    fleet = Fleet(3, Limits(requests_per_minute=limit))
    assert sum(fleet.request(number % 3) for number in range(300)) == limit


def test_what_one_has_used_up_another_gets_a_window_later() -> None:
    fleet = Fleet(3, Limits(requests_per_minute=30))
    assert sum(fleet.request(0) for _ in range(40)) == 30
    assert not fleet.request(1)
    assert sum(fleet.request(1, slot=SLOT + 31) for _ in range(40)) == 30


def test_tokens_and_concurrency_are_lent_too() -> None:
    fleet = Fleet(3, Limits(tokens_per_minute=3000, concurrent=6))
    assert sum(fleet.request(2, 400) for _ in range(10)) == 6
    quota = fleet.quota(2)
    for _ in range(6):
        quota.settle(400, 400, SLOT, SLOT)
    assert [fleet.request(2, 600), fleet.request(2, 1)] == [True, False], "3,000 tokens in all"


def test_a_request_larger_than_a_share_borrows_what_it_needs() -> None:
    fleet = Fleet(3, Limits(tokens_per_minute=3000))
    assert fleet.request(0, 500)
    assert fleet.request(1, 2400)
    assert not fleet.request(2, 200)
    assert fleet.request(2, 100)


def test_a_replica_that_restarts_or_goes_takes_nothing_with_it() -> None:
    fleet = Fleet(3, Limits(requests_per_minute=30))
    for _ in range(20):
        fleet.request(0)
    for ledger, quotas in zip(fleet.ledgers[1:], fleet.all[1:], strict=True):
        ledger.forget("0")
        quotas.split(2)
    for rank, ledger in enumerate(fleet.ledgers[1:]):
        ledger.configure(rank)
    assert [fleet.quota(at).room(REQUESTS, SLOT) for at in (1, 2)] == [15, 15]


def test_a_replica_alone_has_its_share_rounded_up() -> None:
    fleet = Fleet(3, Limits(requests_per_minute=2))
    fleet.ledgers[2].configure(None)
    assert [fleet.quota(at).room(REQUESTS, SLOT) for at in range(3)] == [1, 1, 1]


def test_unknown_names_and_resources_are_nobodys() -> None:
    fleet = Fleet(2, Limits(requests_per_minute=30))
    ledger = fleet.ledgers[0]
    assert ledger.lend("1", "key of nobody", REQUESTS, 5, SLOT) == 0
    assert ledger.lend("1", KEY, 7, 5, SLOT) == 0
    assert ledger.lend("1", KEY, TOKENS, 5, SLOT) == 0, "it has no such limit"
    assert ledger.lend("1", KEY, REQUESTS, -5, SLOT) == 0
    assert fleet.shares(REQUESTS) == 30


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 20), st.booleans(), st.booleans(), st.booleans()),
    max_size=60,
)


@given(steps=STEPS)
@settings(max_examples=200, deadline=None)
def test_the_sum_never_exceeds_the_limit_whatever_is_lost(
    steps: list[tuple[int, int, int, bool, bool, bool]],
) -> None:
    """And is the limit again once each has heard from each."""
    fleet = Fleet(3, Limits(requests_per_minute=31, concurrent=10))
    for replica, lender, wanted, query_lost, reply_lost, uses in steps:
        if replica == lender:
            continue
        for resource in (REQUESTS, CONCURRENT):
            losses = iter((query_lost, reply_lost))
            fleet.borrow(replica, lender, resource, wanted, lost=lambda losses=losses: next(losses))  # type: ignore[misc]
        if uses and fleet.quota(replica).admits(1, SLOT):
            fleet.quota(replica).take(1, SLOT)
        assert fleet.shares(REQUESTS) <= 31
        assert fleet.shares(CONCURRENT) <= 10
    for replica in range(3):
        for lender in range(3):
            if replica != lender:
                for resource in (REQUESTS, CONCURRENT):
                    fleet.borrow(replica, lender, resource, 0)
    assert fleet.shares(REQUESTS) == 31
    assert fleet.shares(CONCURRENT) == 10
