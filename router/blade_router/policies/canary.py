"""Weighted traffic split by revision: first a revision by weight, then one of its endpoints by another policy.

How requests are split is in ``weighted_split.py``.
"""

import time
from collections.abc import Mapping, Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.hashing.hash_ring import session_key
from blade_router.policies.load import with_room
from blade_router.policies.weighted_split import WeightedSplit
from blade_router.request.request import ClientRequest

REPORT_SECONDS = 3.0
"""How long an engine that starts may take to report its revision."""
OTHERS = ""
"""All revisions without a weight."""


class Canary(Policy):
    """A policy that splits traffic between revisions.

    Args:
        inner: chooses among the endpoints of a revision.
        weights: revision to weight. Unlisted revisions share the traffic that their number of endpoints stands for. A
            revision of weight 0 gets requests only when there is no other.
    """

    def __init__(self, inner: Policy, weights: Mapping[str, float]) -> None:
        self.name = inner.name
        self.sticky = True  # revisions keep their shares: only among the endpoints of one, those with room come first
        self.inner = inner
        self._weights = {revision: max(0.0, weight) for revision, weight in sorted(weights.items())}
        self._split = WeightedSplit()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        groups = self._groups(candidates)
        if len(groups) == 1:
            return self._choose(next(iter(groups.values())), request)
        shares = self._shares(groups)
        revision = self._split.choose(shares, session_key(request))
        choice = self._choose(groups[revision], request)
        choice.reason = f"canary rev={_printable(choice.endpoint.revision)} {choice.reason}"
        return choice

    def _choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        return self.inner.choose(candidates if self.inner.sticky else with_room(candidates), request)

    def adapter(self, request: ClientRequest) -> str | None:
        return self.inner.adapter(request)

    def _groups(self, candidates: Sequence[Endpoint]) -> dict[str, list[Endpoint]]:
        """The candidates by revision. Those of which it is about to be known wait for that while there are others."""
        groups: dict[str, list[Endpoint]] = {}
        known = [endpoint for endpoint in candidates if endpoint.revision or not _reports_soon(endpoint)]
        for endpoint in known or candidates:
            revision = endpoint.revision if endpoint.revision in self._weights else OTHERS
            groups.setdefault(revision, []).append(endpoint)
        return groups

    def _shares(self, groups: Mapping[str, Sequence[Endpoint]]) -> dict[str, float]:
        """The share of requests of each group; its order does not depend on that of the endpoints."""
        others = len(groups.get(OTHERS, ())) / sum(map(len, groups.values()))
        total = sum(self._weights.get(revision, 0.0) for revision in groups)
        if total <= 0:
            listed = [revision for revision in sorted(groups) if revision != OTHERS]
            return {OTHERS: 1.0} if others else dict.fromkeys(listed, 1.0 / len(listed))
        left = (1.0 - others) / total
        shares = {revision: weight * left for revision, weight in self._weights.items() if revision in groups}
        if others:
            shares[OTHERS] = others
        return shares

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        groups = self._groups(candidates)
        shares = self._shares(groups)
        found = self.inner.scores(candidates, request)
        for revision, endpoints in groups.items():
            for endpoint in endpoints:
                found[endpoint.name]["share_of_revision"] = shares.get(revision, 0.0)
        return found

    def dry_run_copy(self) -> Policy:
        dry_run = Canary(self.inner.dry_run_copy(), self._weights)
        dry_run._split = self._split.copy()
        return dry_run

    def removed(self, endpoint: Endpoint) -> None:
        self.inner.removed(endpoint)


def _reports_soon(endpoint: Endpoint) -> bool:
    """An engine of ours that has just started, and has not said yet which revision it is."""
    since = endpoint.health.warming_since
    unheard = endpoint.config.engine == "blade" and not endpoint.report.reported_at
    return unheard and since > 0.0 and time.monotonic() - since < REPORT_SECONDS


def _printable(revision: str) -> str:
    return "".join(letter if "!" <= letter <= "~" else "?" for letter in revision) or "none"
