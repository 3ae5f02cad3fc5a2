"""Images for tests of scheduler and runner: a pixel makes an embedding, so that any number of tokens is an image."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from blade_llm.scheduling.images.encoding import ImageEncoding
from blade_llm.scheduling.images.limits import EncoderLimits
from blade_llm.scheduling.plan import StepPlan
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_llm.spec.vision.tower import MergerSpec, VisionSpec

IMAGE_TOKEN: Final = 1
_NORM = NormSpec(1e-6, "layer", bias=True)
SPEC: Final = VisionSpec(
    family="qwen2_vl",
    image_token=IMAGE_TOKEN,
    video_token=None,
    hidden_size=8,
    width=8,
    num_layers=2,
    num_heads=2,
    mlp=MLPSpec(16, "gelu", gated=False),
    norm=_NORM,
    merger=MergerSpec(8, _NORM),
    patch_size=1,
    temporal_patch_size=1,
    merge_size=1,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    rescale=1 / 255,
)
TOKEN_BYTES: Final = 4 * SPEC.hidden_size
"""What the embedding of an image token takes."""


def image_of(name: str, start: int, count: int) -> ImageSpan:
    """An image of one row of pixels at a place in a prompt; equal names and counts are equal images."""
    return ImageSpan(start, count, sha256(f"{name} {count}".encode()).digest(), (1, 1, count))


def pixels_of(image: ImageSpan) -> ImagePixels:
    """The pixels of what :func:`image_of` makes: they repeat its digest."""
    count = image.count
    pixels = (image.digest * (3 * count // 32 + 1))[: 3 * count]
    return ImagePixels(image.digest, image.grid, (1, 1, count, 3), pixels)


def with_images(prompt: Sequence[int], images: Sequence[ImageSpan]) -> list[int]:
    """The prompt with image tokens where images are."""
    tokens = list(prompt)
    for image in images:
        tokens[image.start : image.end] = [IMAGE_TOKEN] * image.count
    return tokens


def encoding(
    cache_tokens: int = 1 << 20, max_num_seqs: int = 64, pixel_bytes: int = 1 << 30, **limits: int
) -> ImageEncoding:
    """The scheduler's part. ``cache_tokens``: image tokens whose embeddings the encoder cache holds."""
    sizes = {"cache_bytes": cache_tokens * TOKEN_BYTES, "element_bytes": 4, "pixel_bytes": pixel_bytes, **limits}
    return ImageEncoding(EncoderLimits(spec=SPEC, **sizes), max_num_seqs)


class FakeTower:
    """Follows the plans of an encoder, and asserts that they keep their contract.

    Attributes:
        encoded: the images whose embeddings there are, and how many tokens each has.
        num_encoded: images, those encoded again included.
    """

    def __init__(self) -> None:
        self.spec = SPEC
        self.capacity: int | None = None
        """Image tokens; None: any number."""
        self.encoded: dict[bytes, int] = {}
        self.num_encoded = 0
        self._grids: dict[bytes, tuple[int, int, int]] = {}
        self._runs: dict[tuple[bytes, ...], int] = {}

    def apply(self, plan: StepPlan) -> None:
        """Encode what ``plan`` says."""
        for digest in plan.freed_images:
            for run in [run for run in self._runs if digest in run]:
                del self._runs[run]
            assert digest in self.encoded or digest in self._grids, "an unknown image left"
            self.encoded.pop(digest, None)
            self._grids.pop(digest, None)
        for image in plan.new_images:
            assert image.digest not in self.encoded, "an image is encoded again"
            assert image.digest not in self._grids, "the pixels of an image come twice"
            self._grids[image.digest] = image.grid
        for chunk in plan.encoder:
            assert chunk.row_layers > 0
            left = self._runs.pop(chunk.digests, None)
            if left is None:
                assert not self._runs, "a run begins before the one before has ended"
                left = sum(self.spec.work(self._grids[digest]) for digest in chunk.digests)
            left -= chunk.row_layers
            assert left >= 0, "more than the run has"
            if left:
                self._runs[chunk.digests] = left
                continue
            self.num_encoded += len(chunk.digests)
            self.encoded.update({digest: self.spec.count(self._grids.pop(digest)) for digest in chunk.digests})
        tokens = sum(self.encoded.values()) + sum(self.spec.count(grid) for grid in self._grids.values())
        assert self.capacity is None or tokens <= self.capacity, "the encoder cache is too full"

    def check(self, images: Sequence[ImageSpan], start: int, end: int) -> None:
        """Assert that positions ``start .. end - 1`` of a prompt can be computed."""
        for image in images:
            if image.start < end and start < image.end:
                assert image.digest in self.encoded, "an image is computed before it is encoded"
