"""What an engine needs to know of its vision tower to schedule it, and the refusal of images that it cannot encode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from blade_llm.scheduling.request import Request, RequestRefusedError
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_llm.spec.vision.tower import VisionSpec

MAX_RUN_TOKENS: Final = 16384
"""Embeddings that the tower makes at a time at most, those of one image or of several: what the families' processors
allow one."""
MAX_RUN_IMAGES: Final = 32
"""Images of one run at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLimits:
    """Bounds of images."""

    spec: VisionSpec
    cache_bytes: int
    """Embeddings on the device (``--encoder_cache_bytes``)."""
    element_bytes: int
    """Of one number of an embedding."""
    max_tokens: int = MAX_RUN_TOKENS
    """Embeddings of one run of the tower, for which memory is planned."""
    pixel_bytes: int = 4 << 30
    """Pixels in host memory, of all requests together."""

    def nbytes(self, image: ImageSpan) -> int:
        """What the embeddings of an image take on the device, deepstack levels included."""
        return image.count * self.spec.embedding_elements * self.element_bytes


def check_images(request: Request, limits: EncoderLimits | None) -> None:
    """Check the images of a request. ``limits``: None for an engine that takes none.

    Raises:
        RequestRefusedError: the engine takes no images; they overlap, leave the prompt, or do not stand where the
            prompt has image tokens; one comes without its pixels, or is larger than the whole encoder cache or than
            one run of the tower.
    """
    if limits is None:
        raise RequestRefusedError(
            "this engine takes text alone: its model has no vision tower, or it is not loaded (--with_visual false); "
            "leave the images out"
        )
    spec = limits.spec
    tokens = {spec.image_token, spec.video_token}
    grids: dict[bytes, tuple[int, int, int]] = {}
    end = 0
    for index, image in enumerate(request.images):
        name, smaller = f"image {index + 1} of {len(request.images)}", "send a smaller one"
        before, end = end, image.end
        if not before <= image.start < end <= request.num_prompt_tokens:
            raise RequestRefusedError(
                f"{name} takes positions {image.start} to {end - 1}, behind position {before} and within the prompt of "
                f"{request.num_prompt_tokens} tokens it has to be"
            )
        if not tokens.issuperset(request.prompt_token_ids[image.start : end]):
            raise RequestRefusedError(f"{name} stands where the prompt has other tokens than {spec.image_token}")
        if request.prompt_token_ids[image.start] == spec.video_token:
            name, smaller = f"{name}, a video,", "send fewer frames, or smaller ones (max_pixels)"
        if grids.setdefault(image.digest, image.grid) != image.grid:
            raise RequestRefusedError(f"{name} has the digest of another one, but not its grid")
        _check_grid(name, image, spec)
        _check_pixels(name, image, request.pixels.get(image.digest), spec)
        if image.stretched or not 0 <= image.interval < math.inf:
            raise RequestRefusedError(f"{name} has frames {image.interval} positions from each other: too far")
        if (nbytes := limits.nbytes(image)) > limits.cache_bytes:
            raise RequestRefusedError(
                f"{name} has {image.count} tokens, whose embeddings take {nbytes} bytes, but the encoder cache holds "
                f"{limits.cache_bytes}; {smaller}, or raise --encoder_cache_bytes to {nbytes}"
            )
        if image.count > limits.max_tokens:
            raise RequestRefusedError(
                f"{name} has {image.count} tokens, but memory is planned for images of {limits.max_tokens}; {smaller}"
            )


def _check_grid(name: str, image: ImageSpan, spec: VisionSpec) -> None:
    try:
        count = spec.count(image.grid)
    except ValueError as error:
        raise RequestRefusedError(f"{name}: {error}") from error
    if count != image.count:
        raise RequestRefusedError(f"{name} has {image.count} tokens, but its grid makes {count} embeddings")


def _check_pixels(name: str, image: ImageSpan, pixels: ImagePixels | None, spec: VisionSpec) -> None:
    if pixels is None:
        raise RequestRefusedError(f"{name} comes without its pixels")
    if pixels.grid != image.grid or pixels.shape not in spec.pixel_shapes(image.grid):
        raise RequestRefusedError(f"{name} has pixels of {pixels.shape}, which do not make its grid of {image.grid}")
    if len(pixels.pixels) != math.prod(pixels.shape):
        raise RequestRefusedError(f"{name} has {len(pixels.pixels)} bytes of pixels, not {math.prod(pixels.shape)}")
