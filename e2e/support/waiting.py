"""Waiting for something to become true, with the last thing seen when it does not."""

import time
from collections.abc import Callable
from typing import TypeVar

from e2e.cluster import Cluster

T = TypeVar("T")


class TimedOut(AssertionError):
    """What was waited for did not happen."""


def until(
    condition: Callable[[], T],
    timeout: float,
    what: str,
    *,
    pause: float = 0.2,
    ignoring: tuple[type[Exception], ...] = (),
) -> T:
    """The first true value of ``condition()``; it is evaluated at least once, and once more after ``timeout`` seconds.

    Errors of the types in ``ignoring`` count as not yet. Raises TimedOut with ``what`` and the last value or error.
    """
    deadline = time.monotonic() + timeout
    while True:
        last_chance = time.monotonic() >= deadline
        seen: object
        try:
            value = condition()
            if value:
                return value
            seen = value
        except ignoring as error:
            seen = error
        if last_chance:
            raise TimedOut(f"{what}: not within {timeout:g} s; last seen: {seen!r}")
        time.sleep(pause)


def until_served(cluster: Cluster, *kinds: str) -> None:
    """Wait until the API server serves these custom resource definitions. ``kubectl wait`` fails for one whose status
    has no conditions yet."""

    def served() -> bool:
        found = cluster.json("get", "crd", *kinds)
        conditions = [(each.get("status") or {}).get("conditions") or () for each in found.get("items", [found])]
        return all(any(one["type"] == "Established" and one["status"] == "True" for one in each) for each in conditions)

    until(served, 60, f"{', '.join(kinds)} served")
