"""Requests in order of (priority, arrival).

Both the waiting and the running ones are kept so. A preempted request keeps its arrival, so it waits ahead of everyone
who came later; the last of the running is the next to be preempted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from blade_llm.scheduling.request import Request


def _order(request: Request) -> tuple[int, int]:
    return request.order


class RequestQueue:
    """A sorted list. Insertion and removal move pointers, which for thousands of requests takes microseconds."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_order)

    def remove(self, request: Request) -> None:
        """Raises ValueError when it is not there."""
        index = bisect_left(self._requests, request.order, key=_order)
        if index == len(self._requests) or self._requests[index] is not request:
            raise ValueError(f"request {request.request_id!r} is not in the queue")
        del self._requests[index]

    def first(self, count: int) -> list[Request]:
        """The first so many, or all."""
        return self._requests[:count]

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class WaitingQueue(RequestQueue):
    """One that also knows its shortest prompts, however many stand before them."""

    def __init__(self) -> None:
        super().__init__()
        self._by_length: list[tuple[int, int, int, Request]] = []
        """(priority, tokens, arrival, request), sorted."""
        self._keys: dict[Request, tuple[int, int, int, Request]] = {}

    def add(self, request: Request) -> None:
        super().add(request)
        key = (request.priority, len(request.token_ids), request.arrival, request)
        self._keys[request] = key
        insort(self._by_length, key)

    def remove(self, request: Request) -> None:
        super().remove(request)
        del self._by_length[bisect_left(self._by_length, self._keys.pop(request))]

    def shortest(self, count: int) -> list[Request]:
        """The so many with the fewest tokens of those that are as urgent as the first of all."""
        return [key[3] for key in self._by_length[:count] if key[0] == self._by_length[0][0]]
