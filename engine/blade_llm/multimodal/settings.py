"""How large a request wants its images: OpenAI's ``detail``, and ``min_pixels`` and ``max_pixels`` of
``mm_processor_kwargs`` (vLLM), within the server's limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.options import ImageOptions

LOW_DETAIL_PIXELS: Final = 512 * 512
"""``detail: low`` is "a low-resolution 512px x 512px version of the image" in OpenAI's guide to images and vision."""
DETAILS: Final = ("auto", "low", "high", "original")
"""All but ``low`` mean the model's own resolution. vLLM ignores the field."""

_EDGES: Final = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}


class PixelBounds(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Pixels (width times height) of a resized image."""

    min_pixels: int
    max_pixels: int


class ImageSettings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a request says about an image."""

    detail: str | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None

    def with_processor_kwargs(self, kwargs: Mapping[str, Any]) -> ImageSettings:
        """And what ``mm_processor_kwargs`` says: ``min_pixels`` and ``max_pixels``, or ``size`` with their names in
        processor files (``shortest_edge``, ``longest_edge``). Raises :class:`ImageError` at anything else, which would
        change the pixels elsewhere."""
        size = kwargs.get("size", {})
        if not isinstance(size, Mapping):
            raise ImageError("mm_processor_kwargs: size must be an object with shortest_edge and longest_edge")
        unknown = sorted((kwargs.keys() - {"size", "min_pixels", "max_pixels"}) | (size.keys() - _EDGES.keys()))
        if unknown:
            raise ImageError(
                f"mm_processor_kwargs: {', '.join(unknown)} is not supported; min_pixels and max_pixels are"
            )
        given = {_EDGES[name]: value for name, value in size.items()}
        given |= {name: value for name, value in kwargs.items() if name != "size"}
        for name, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise ImageError(f"mm_processor_kwargs: {name} must be a whole number, not {value!r:.40}")
        return msgspec.structs.replace(self, **given)

    def bounds(self, own: PixelBounds, options: ImageOptions) -> PixelBounds:
        """The bounds to resize to, for a model whose processor files say ``own``. What the request says itself holds
        or is refused; defaults give way to it. Raises :class:`ImageError`."""
        limit = options.max_image_pixels or own.max_pixels
        most = limit if self.max_pixels is None else self.max_pixels
        if not 1 <= most <= limit:
            raise ImageError(f"max_pixels must be between 1 and {limit} here, not {most}")
        if self.detail is not None and self.detail not in DETAILS:
            raise ImageError(f"detail must be one of {', '.join(DETAILS)}, not {self.detail!r:.40}")
        if self.detail == "low":
            most = min(most, LOW_DETAIL_PIXELS)
        if self.min_pixels is None:
            return PixelBounds(min(options.min_image_pixels or own.min_pixels, most), most)
        if not 1 <= self.min_pixels <= most:
            raise ImageError(f"min_pixels must be between 1 and {most} (max_pixels) here, not {self.min_pixels}")
        return PixelBounds(self.min_pixels, most)
