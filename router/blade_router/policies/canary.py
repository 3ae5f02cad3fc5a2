"""Shares of the traffic by revision: first the revision by weight, then an endpoint of it by another policy.

A session is drawn once and for all, by a hash of its key: it moves only when the weights pass over its place. Other
requests take turns so that shares come out exactly, and not only on average.
"""

import copy
from collections.abc import Mapping, Sequence

from blade_router.endpoints import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.ring import hashed, session_key
from blade_router.request import ClientRequest

OTHERS = ""
"""All revisions without a weight."""


class Canary(Policy):
    """Args:

    inner: chooses among the endpoints of a revision.
    weights: revision to weight. Revisions that are not listed get together what they would by their number of
        endpoints. A revision of weight 0 gets requests only when there is no other.
    """

    def __init__(self, inner: Policy, weights: Mapping[str, float]) -> None:
        self.name = inner.name
        self.inner = inner
        self._weights = {revision: max(0.0, weight) for revision, weight in sorted(weights.items())}
        self._owed: dict[str, float] = {}
        """What each revision is behind its share, in requests."""

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        groups = self._groups(candidates)
        if len(groups) == 1:
            return self.inner.choose(candidates, request)
        shares = self._shares(groups, len(candidates))
        key = session_key(request)
        revision = _drawn(shares, hashed(key) / 2.0**64) if key else self._turn(shares)
        choice = self.inner.choose(groups[revision], request)
        choice.reason = f"canary rev={_printable(choice.endpoint.revision)} {choice.reason}"
        return choice

    def adapter(self, request: ClientRequest) -> str | None:
        return self.inner.adapter(request)

    def _groups(self, candidates: Sequence[Endpoint]) -> dict[str, list[Endpoint]]:
        """Candidates by revision."""
        groups: dict[str, list[Endpoint]] = {}
        for endpoint in candidates:
            revision = endpoint.revision if endpoint.revision in self._weights else OTHERS
            groups.setdefault(revision, []).append(endpoint)
        return groups

    def _shares(self, groups: Mapping[str, Sequence[Endpoint]], count: int) -> dict[str, float]:
        """What part of requests each group gets; in an order that does not depend on that of the endpoints."""
        others = len(groups.get(OTHERS, ())) / count
        total = sum(self._weights.get(revision, 0.0) for revision in groups)
        if total <= 0:
            listed = [revision for revision in sorted(groups) if revision != OTHERS]
            return {OTHERS: 1.0} if others else dict.fromkeys(listed, 1.0 / len(listed))
        left = (1.0 - others) / total
        shares = {revision: weight * left for revision, weight in self._weights.items() if revision in groups}
        if others:
            shares[OTHERS] = others
        return shares

    def _turn(self, shares: Mapping[str, float]) -> str:
        """The revision that is furthest behind its share."""
        owed = {revision: self._owed.get(revision, 0.0) + share for revision, share in shares.items()}
        revision = max(owed, key=owed.__getitem__)
        owed[revision] -= 1.0
        self._owed = owed
        return revision

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        groups = self._groups(candidates)
        shares = self._shares(groups, len(candidates))
        found = self.inner.scores(candidates, request)
        for revision, endpoints in groups.items():
            for endpoint in endpoints:
                found[endpoint.name]["share_of_revision"] = shares.get(revision, 0.0)
        return found

    def rehearsal(self) -> Policy:
        twin = copy.copy(self)
        twin.inner = self.inner.rehearsal()
        return twin

    def removed(self, endpoint: Endpoint) -> None:
        self.inner.removed(endpoint)


def _drawn(shares: Mapping[str, float], point: float) -> str:
    """The revision at a point from 0 to 1."""
    for revision, share in shares.items():
        point -= share
        if point < 0:
            return revision
    return max(shares, key=shares.__getitem__)  # the sum of the shares was a rounding error below the point


def _printable(revision: str) -> str:
    return "".join(letter if "!" <= letter <= "~" else "?" for letter in revision) or "none"
