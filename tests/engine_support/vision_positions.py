"""Positions of prompts with videos as transformers had them up to 5.2, from those that it has now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from blade_llm.spec.vision.images import ImageSpan


def behind_videos(positions: torch.Tensor, images: Sequence[ImageSpan], merge_size: int) -> torch.Tensor:
    """``positions``, [3, tokens], of transformers 5.23, but that what follows a video begins behind its last frame too.

    transformers 5.3 lost that: it begins behind the longer side of a frame
    (https://github.com/huggingface/transformers/issues/45381 shows both). Wang et al. (arXiv 2409.12191): "position
    numbering for each modality is initialized by incrementing the maximum position ID of the preceding modality by
    one".
    """
    moved = positions.clone()
    for image in images:
        frames, rows, columns = image.grid
        last = int(np.float32(frames - 1) * np.float32(image.interval))
        moved[:, image.end :] += max(0, last + 1 - max(rows, columns) // merge_size)
    return moved
