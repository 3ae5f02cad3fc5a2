"""What is noted while a request is read, for the head of its response: the fields that were left out
(``x-blade-ignored``), and the constraints that outputs are not held to (``x-blade-unheld``).

The notes of one request are a context variable: whatever reads a part of its body, at any depth, adds to them. All of
it is read before the engine gets the request, so the head has them whatever the first bytes after it are, a comment
included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, MutableMapping
from contextvars import ContextVar

from blade_llm.api.common.unheld import UnheldPlaces
from blade_llm.api.common.unknown_fields import UnknownFields
from blade_protocol import headers


class ResponseNotes:
    """Those of one request. ``strict``: fields that nobody knows are refused."""

    def __init__(self, *, strict: bool = False) -> None:
        self.unknown = UnknownFields(strict=strict)
        self.unheld = UnheldPlaces()

    def write(self, head: MutableMapping[str, str]) -> None:
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
