"""Why the images of a request cannot be used."""

from __future__ import annotations


class BadImagesError(ValueError):
    """What the client sent; the message says what to change."""

    def __init__(self, message: str, code: str, index: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        """Of OpenAI's codes about images, where there is one."""
        self.index = index
        """The image that is meant; None: all of them."""


class BusyError(Exception):
    """The same images may be taken later."""
