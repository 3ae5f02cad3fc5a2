"""Responses that another engine keeps than the one their ids name: a stream of theirs was resumed there.

An id goes to the client with a stream's first event and names the engine that began. So many are remembered, by this
process alone: elsewhere, and later, such a response is as gone as its first engine.
"""

from collections import OrderedDict
from typing import Final

MOST: Final = 4096


class MovedResponses:
    """The last :data:`MOST` of them."""

    def __init__(self) -> None:
        self._tags: OrderedDict[str, str] = OrderedDict()

    def note(self, response_id: str, tag: str) -> None:
        """The endpoint with this tag writes the end of the response, and keeps it."""
        self._tags[response_id] = tag
        self._tags.move_to_end(response_id)
        if len(self._tags) > MOST:
            self._tags.popitem(last=False)

    def tag_of(self, response_id: str) -> str:
        """The tag of that endpoint; empty where the id's own one counts."""
        return self._tags.get(response_id, "")
