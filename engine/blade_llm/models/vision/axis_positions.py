"""Positions of a prompt with images on three axes (M-RoPE: Wang et al., arXiv 2409.12191). No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blade_llm.spec.vision.images import ImageSpan


def axis_positions(num_tokens: int, images: Sequence[ImageSpan], merge_size: int) -> tuple[NDArray[np.int32], int]:
    """Temporal position, row and column of each token of a prompt, [3, num_tokens], and what has to be added to a
    position beyond the prompt to have all three of it.

    Text counts on all axes alike. An image begins where the text before it ends, its tokens differ by frame, row and
    column, and the text after it begins behind the last of their positions on any axis, as the paper says, and
    transformers up to 5.2 and vLLM; transformers 5.23 begins it behind the longer side even where later frames have
    these positions. Images of n tokens take at most n positions, so that the number to add is 0 or negative, unless
    frames are far from each other (:attr:`~blade_llm.spec.vision.images.ImageSpan.stretched`).

    ``num_tokens``: of the whole prompt. ``images``: in the order of their positions. ``merge_size``: patches in each
    direction that one token is made of.

    Raises ``ValueError`` for images that overlap, that are not in order or not in the prompt, and for one whose grid
    does not have as many tokens as its span.
    """
    positions = np.empty((3, num_tokens), np.int32)
    token = position = 0
    for index, image in enumerate(images):
        frames, rows, columns = image.grid[0], image.grid[1] // merge_size, image.grid[2] // merge_size
        end = image.end
        if not token <= image.start <= end <= num_tokens:
            raise ValueError(f"image {index} at {image.start} to {end} overlaps another or the prompt's {num_tokens}")
        if min(image.grid) < 1 or frames * rows * columns != image.count:
            raise ValueError(
                f"image {index} has {image.count} tokens, but a grid of {list(image.grid)} patches, {merge_size} x "
                f"{merge_size} a token"
            )
        positions[:, token : image.start] = np.arange(position, position + image.start - token, dtype=np.int32)
        position += image.start - token
        interval = np.float32(image.interval)
        block = positions[:, image.start : end].reshape(3, frames, rows, columns)
        block[0] = (position + (np.arange(frames, dtype=np.float32) * interval).astype(np.int32))[:, None, None]
        block[1] = (position + np.arange(rows, dtype=np.int32))[:, None]
        block[2] = position + np.arange(columns, dtype=np.int32)
        position = int(block.max(initial=position - 1)) + 1
        token = end
    positions[:, token:] = np.arange(position, position + num_tokens - token, dtype=np.int32)
    return positions, int(positions.max(initial=-1)) + 1 - num_tokens
