"""Fields of a request that nobody knows: accepted and said so, or refused under ``--strict_fields``.

OpenAI and its clients add fields all the time, most of which change no answer; so that one that would is not ignored in
silence, a response lists in ``x-blade-ignored`` what was left out. A server under ``--strict_fields`` refuses instead,
with the nearest known name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Final

from blade_llm.api.common.errors import LONGEST_ECHO, ApiError, bad_request, shortened

MAX_FIELDS: Final = 200
"""More fields than any route has: a body with more at its top level is refused."""
MAX_LISTED: Final = 16
"""Names in the header; after them it ends with :data:`MORE`."""
LONGEST_NAME: Final = 64
"""Characters of a name in the header, which cuts off the rest."""
MORE: Final = "..."
_MAX_KEPT: Final = 64
"""Different names that are counted."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.\-\[\]$@:/]")
"""What would end a header's line, or separate names in it, or is no ASCII."""


class UnknownFields:
    """Those of one request. ``strict``: refuse them."""

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._names: dict[str, None] = {}

    @property
    def count(self) -> int:
        """Different names, at most as many as are kept."""
        return len(self._names)

    def note(self, name: str, known: Collection[str] = (), within: str = "") -> None:
        """Record a field that nobody knows.

        Args:
            known: the fields there are in its place.
            within: where it stands, as ``messages[].content[]``; empty at the top.

        Raises :class:`ApiError` 400 that names the field, and the nearest known one, where they are refused.
        """
        if self.strict:
            raise _unknown(name, known, within)
        self.leave_out(f"{within}.{name[:LONGEST_NAME]}" if within else name[:LONGEST_NAME])

    def leave_out(self, path: str) -> None:
        """Record what is known and has no effect, which nobody is refused for."""
        if len(self._names) < _MAX_KEPT:
            self._names[path] = None

    def header(self) -> str:
        """The value of ``x-blade-ignored``: names with commas between, of which none comes from outside ASCII or holds
        a comma or white space; ``?`` stands for each such character. Empty for none."""
        names = [_UNSAFE.sub("?", name[:LONGEST_NAME]) or "?" for name in self._names]
        return ", ".join([*names[:MAX_LISTED], *([MORE] if len(names) > MAX_LISTED else [])])


def _unknown(name: str, known: Collection[str], within: str) -> ApiError:
    where = f"{within}: " if within else ""
    param = within.partition(".")[0].partition("[")[0] or shortened(name)
    if len(name) > LONGEST_ECHO:  # the nearest name takes time that grows with its length, and there is none near
        return bad_request(f"{where}unknown field {shortened(name)!r}", param, "unknown_field")
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return bad_request(f"{where}unknown field {name!r}{hint}", param, "unknown_field")
