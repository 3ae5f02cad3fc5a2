"""``x-blade-unheld``: constraints of a request's schemas that its outputs are not held to, and who sends it may check.

A grammar cannot follow them (``uniqueItems`` of many values), and to refuse the request would help nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final
from urllib.parse import quote

_MOST: Final = 8
_LONGEST: Final = 128
"""Characters of a place; a longer one is cut."""


class UnheldPlaces:
    """Those of one request, as JSON pointers."""

    def __init__(self) -> None:
        self._places: dict[str, None] = {}

    def note(self, places: Iterable[str]) -> None:
        """Remember ``places``."""
        self._places.update(dict.fromkeys(places))

    def header(self) -> str:
        """The value of ``x-blade-unheld``: pointers as URI fragments, commas between; empty for none."""
        named = (quote(place[:_LONGEST], safe="#/~:@!$&'()*+;=-._") for place in islice(self._places, _MOST))
        return ", ".join(named)
