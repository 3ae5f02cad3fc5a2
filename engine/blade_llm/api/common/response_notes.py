"""What is noted while a request is read, for the head of its response: the fields that were left out
(``x-blade-ignored``), and the constraints that outputs are not held to (``x-blade-unheld``).

The notes of one request are a context variable: whatever reads a part of its body, at any depth, adds to them. All of
it is read before the engine gets the request, so the head has them whatever the first bytes after it are, a comment
included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import Final
from urllib.parse import quote

from starlette.datastructures import MutableHeaders

from blade_llm.api.common.unknown_fields import UnknownFields
from blade_protocol import headers

_MOST_PLACES: Final = 8
_LONGEST_PLACE: Final = 128
"""Characters of a place; a longer one is cut."""


class UnheldPlaces:
    """Constraints of a request's schemas that its outputs are not held to, as JSON pointers: who sends it may check.

    A grammar cannot follow them (``uniqueItems`` of many values), and to refuse the request would help nobody.
    """

    def __init__(self) -> None:
        self._places: dict[str, None] = {}

    def note(self, places: Iterable[str]) -> None:
        """Remember ``places``."""
        self._places.update(dict.fromkeys(places))

    def header(self) -> str:
        """The value of ``x-blade-unheld``: pointers as URI fragments, commas between; empty for none."""
        listed = islice(self._places, _MOST_PLACES)
        return ", ".join(quote(place[:_LONGEST_PLACE], safe="#/~:@!$&'()*+;=-._") for place in listed)


class ResponseNotes:
    """Those of one request. ``strict``: fields that nobody knows are refused."""

    def __init__(self, *, strict: bool = False) -> None:
        self.unknown = UnknownFields(strict=strict)
        self.unheld = UnheldPlaces()

    def write(self, head: MutableHeaders) -> None:
        """Add the headers, where there is something to say."""
        for name, value in ((headers.IGNORED, self.unknown.header()), (headers.UNHELD, self.unheld.header())):
            if value:
                head[name] = value


_current: ContextVar[ResponseNotes | None] = ContextVar("response_notes", default=None)


@contextlib.contextmanager
def noting(*, strict: bool) -> Iterator[ResponseNotes]:
    """The notes of the request that is handled inside."""
    notes = ResponseNotes(strict=strict)
    token = _current.set(notes)
    try:
        yield notes
    finally:
        _current.reset(token)


def note_unknown(name: str, known: Collection[str] = (), within: str = "") -> None:
    """:meth:`UnknownFields.note` for the request that is being handled; without effect outside of one."""
    if (notes := _current.get()) is not None:
        notes.unknown.note(name, known, within)


def note_left_out(paths: Iterable[str]) -> None:
    """Let the response to the request that is being handled name what of it is known and has no effect."""
    if (notes := _current.get()) is not None:
        for path in paths:
            notes.unknown.leave_out(path)


def note_unheld(places: Iterable[str]) -> None:
    """Remember ``places`` (JSON pointers) for the response to the request that is being handled."""
    if (notes := _current.get()) is not None:
        notes.unheld.note(places)


def check_keys(value: dict[str, object], known: Collection[str], within: str) -> None:
    """:func:`note_unknown` for the keys of ``value`` that are none of ``known``."""
    for name in value:
        if name not in known:
            note_unknown(name, known, within)
