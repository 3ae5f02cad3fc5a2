"""Search text that comes in pieces for a marker, without giving out what may be the beginning of one."""

from __future__ import annotations

from typing import Final

WHITESPACE: Final = " \t\r\n"
"""What JSON calls whitespace: all that may stand around markers and is no content there."""


def partial_marker(text: str, marker: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``marker``, short of the whole."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def settled(text: str, marker: str) -> int:
    """How much of ``text``, which does not hold ``marker``, can be given out.

    Not an end that may become the marker, nor the whitespace before it, which would belong to the marker.
    """
    return len(text[: len(text) - partial_marker(text, marker)].rstrip(WHITESPACE))


class HeldText:
    """Text that is held back. White space is not read again with each piece: a model may write it for ever."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._blank = True
        """All of it is white space."""

    def keeps(self, piece: str) -> bool:
        """Whether ``piece`` decides nothing, as all so far is white space; then it is held, too."""
        if piece and (not self._blank or piece.strip(WHITESPACE)):
            return False
        self._pieces += [piece] if piece else []
        return True

    def hold(self, text: str) -> None:
        """Hold ``text`` in place of what was taken."""
        self._pieces = [text] if text else []
        self._blank = not text.strip(WHITESPACE)

    def take(self) -> str:
        """All of it; nothing is held any more."""
        text = "".join(self._pieces)
        self.hold("")
        return text
