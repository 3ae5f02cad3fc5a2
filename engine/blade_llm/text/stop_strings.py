"""Stop strings: end the text where one begins, and never let the beginning of one slip out before it is complete."""

from __future__ import annotations


class StopStrings:
    """Watches one output's text for ``stop``.

    The match that is complete first wins (of those, the one that began first), so the outcome does not depend on how
    the text is cut into pieces. Without ``include`` the match is not part of the text.
    """

    def __init__(self, stop: tuple[str, ...], *, include: bool = False) -> None:
        self._stop = stop
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found."""

    def add(self, piece: str) -> str:
        """The text that may be given out now that ``piece`` has come. Empty once something matched."""
        if not self._stop or self.matched is not None:
            return piece if self.matched is None else ""
        text = self._held + piece
        if match := self._first_match(text):
            begin, stop = match
            self.matched, self._held = stop, ""
            return text[: begin + len(stop)] if self._include else text[:begin]
        keep = self._partial_match(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, now that nothing can complete it."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [(begin + len(stop), begin, stop) for stop in self._stop if (begin := text.find(stop)) >= 0]
        return min(found)[1:] if found else None

    def _partial_match(self, text: str) -> int:
        """Length of the longest end of ``text`` that is the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            begin = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while begin >= 0 and not stop.startswith(text[begin:]):
                begin = text.find(stop[0], begin + 1)
            if begin >= 0:
                longest = max(longest, len(text) - begin)
        return longest
