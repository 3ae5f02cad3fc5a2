"""Images of InternVL: cut into tiles of one size, and a thumbnail of the whole after them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from blade_llm.multimodal.processors.resized import BICUBIC, CHANNELS, Resized
from blade_llm.multimodal.processors.sizes import check_area
from blade_llm.multimodal.settings import PixelBounds
from blade_llm.spec.vision.images import CLIP_MEAN, CLIP_STD

if TYPE_CHECKING:
    from PIL.Image import Image


class TiledProcessor(msgspec.Struct, frozen=True, tag="tiled"):
    """Equal to transformers' ``GotOcr2ImageProcessorPil`` with ``crop_to_patches``, which ``InternVLProcessor`` sets.

    The bounds in pixels are bounds on the number of tiles, without the thumbnail.
    """

    tile_height: int
    tile_width: int
    patch_size: int
    """Side, in pixels."""
    tile_tokens: int
    """Tokens of one tile (``image_seq_length``)."""
    min_tiles: int = 1
    max_tiles: int = 12
    resample: int = BICUBIC
    rescale: float = 1 / 255
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    surrounding: tuple[str, str] = ("<img>", "</img>")
    """Special tokens to put before and after an image's tokens, which the chat template does not write."""

    @property
    def own_bounds(self) -> PixelBounds:
        area = self.tile_height * self.tile_width
        return PixelBounds(self.min_tiles * area, self.max_tiles * area)

    def check_size(self, height: int, width: int) -> None:
        """Of an image not decoded yet; every ratio will do. Raises :class:`ImageError`."""
        check_area(height, width)

    def grid(self, height: int, width: int, bounds: PixelBounds) -> tuple[int, int, int]:
        """Tiles (the thumbnail included), rows and columns of one, in patches."""
        columns, rows = self._arrangement(height, width, bounds)
        return self._grid_of(columns * rows + (columns * rows > 1))

    def count(self, grid: tuple[int, int, int]) -> int:
        """Tokens of an image, without :attr:`surrounding`."""
        return grid[0] * self.tile_tokens

    def process(self, image: Image, bounds: PixelBounds) -> Resized:
        """Resize an RGB image; ``shape`` is (tiles, tile height, tile width, 3), tiles row by row."""
        size = self.tile_width, self.tile_height
        columns, rows = self._arrangement(image.height, image.width, bounds)
        whole = image.resize((columns * self.tile_width, rows * self.tile_height), resample=self.resample)
        tiles = []
        for top in range(0, whole.height, self.tile_height):
            for left in range(0, whole.width, self.tile_width):
                box = (left, top, left + self.tile_width, top + self.tile_height)
                tiles.append(whole.crop(box).tobytes())
        if len(tiles) > 1:
            tiles.append(image.resize(size, resample=self.resample).tobytes())
        shape = (len(tiles), self.tile_height, self.tile_width, CHANNELS)
        return Resized(self._grid_of(len(tiles)), shape, b"".join(tiles))

    def _grid_of(self, tiles: int) -> tuple[int, int, int]:
        return tiles, self.tile_height // self.patch_size, self.tile_width // self.patch_size

    def _arrangement(self, height: int, width: int, bounds: PixelBounds) -> tuple[int, int]:
        """Columns and rows whose ratio is nearest to the image's; of equal ones the larger, while its area is less than
        twice the image's (InternVL 1.5, Chen et al., 2024: "dynamic high resolution")."""
        area = self.tile_height * self.tile_width
        most = max(1, bounds.max_pixels // area)
        least = min(most, max(1, math.ceil(bounds.min_pixels / area)))
        best, best_difference = (1, 1), math.inf
        for columns, rows in _arrangements(least, most):
            difference = abs(width / height - columns / rows)
            larger = difference == best_difference and height * width > 0.5 * area * columns * rows
            if difference < best_difference or larger:
                best, best_difference = (columns, rows), difference
        return best


def _arrangements(least: int, most: int) -> list[tuple[int, int]]:
    """(columns, rows) of ``least`` to ``most`` tiles, fewest tiles first and then fewest columns."""
    every = ((columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1))
    return sorted((pair for pair in every if pair[0] * pair[1] >= least), key=lambda pair: pair[0] * pair[1])
