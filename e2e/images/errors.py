"""The one error this package raises; its message says what to change."""


class ImageError(Exception):
    """An image could not be built, or is not what it should be."""
