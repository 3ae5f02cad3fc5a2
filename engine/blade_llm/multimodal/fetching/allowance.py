"""How many bytes requests may hold while their files are fetched."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from blade_llm.multimodal.fetching.errors import MediaError


class HeldBytes:
    """What all requests of a process hold, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Allowance:
    """The bytes one request may hold; a context manager that gives them back."""

    def __init__(self, process: HeldBytes, limit: int) -> None:
        self._process = process
        self._limit = limit
        self._taken = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._process.held -= self._taken
        self._taken = 0

    def take(self, count: int, url: str) -> None:
        """Raises MediaError where the request or the process would hold too much."""
        if self._taken + count > self._limit:
            reason = (
                f"the files of this request have more than {self._limit} bytes together; send fewer or smaller ones"
            )
            raise MediaError("too_large", reason, url)
        if self._process.held + count > self._process.limit:
            raise MediaError("busy", "this server is fetching too much for other requests; try again", url)
        self._taken += count
        self._process.held += count
