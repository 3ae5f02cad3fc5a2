"""Who may read a metric: the API server decides, by a SubjectAccessReview. Its word counts for ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from blade_operator.cluster.kubernetes.api import Api
from blade_operator.external_metrics.documents import VERSION
from blade_operator.external_metrics.front_proxy import User

PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ALLOWED_SECONDS: Final = 10.0
REFUSED_SECONDS: Final = 5.0
MOST_REMEMBERED: Final = 1024
"""Decisions that are kept; beyond it those made first go."""

_Question = tuple[str, str, tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...], str, str, str]


class Access:
    """Asks whether users may read metrics."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._decisions: dict[_Question, tuple[float, bool]] = {}
        """Until when each counts."""

    async def allows(self, user: User, group: str, namespace: str, metric: str) -> bool:
        """Whether ``user`` may list that metric, a resource of the API group ``group``, in the namespace.

        Raises:
            ApiError: the API server does not say.
        """
        extra = tuple(sorted(user.extra.items()))
        question = (user.name, user.uid, tuple(sorted(user.groups)), extra, group, namespace, metric)
        known = self._decisions.get(question)
        if known is not None and self._clock() < known[0]:
            return known[1]
        allowed = await self._ask(user, group, namespace, metric)
        self._decisions.pop(question, None)
        while len(self._decisions) >= MOST_REMEMBERED:
            del self._decisions[next(iter(self._decisions))]
        seconds = ALLOWED_SECONDS if allowed else REFUSED_SECONDS
        self._decisions[question] = (self._clock() + seconds, allowed)
        return allowed

    async def _ask(self, user: User, group: str, namespace: str, metric: str) -> bool:
        place = {"namespace": namespace, "verb": "list", "group": group, "version": VERSION, "resource": metric}
        spec = {
            "user": user.name,
            "groups": list(user.groups),
            **({"uid": user.uid} if user.uid else {}),
            **({"extra": {name: list(values) for name, values in user.extra.items()}} if user.extra else {}),
            "resourceAttributes": place,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        # It changes nothing, so a standby may ask, too.
        review = await self._api.write("POST", PATH, body, kind="SubjectAccessReview", guarded=False)
        status = review.get("status") or {}
        return status.get("allowed") is True and status.get("denied") is not True
