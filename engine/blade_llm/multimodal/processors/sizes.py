"""Which sizes no processor takes."""

from __future__ import annotations

from blade_llm.multimodal.errors import ImageError


def check_area(height: int, width: int) -> None:
    """Raises :class:`ImageError` for a single pixel: a tracker or a placeholder of a web page, which nobody means to
    ask about."""
    if height * width <= 1:
        raise ImageError(f"the image is {width} x {height} pixel, in which there is nothing to see; send a larger one")
