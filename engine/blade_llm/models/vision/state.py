"""Images on their way through a vision tower."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from blade_llm.models.vision.geometry import Spans
from blade_llm.models.vision.patches import PatchedImage
from blade_llm.models.vision.positions import axial_angles
from blade_llm.spec.vision.images import ImagePixels
from blade_llm.spec.vision.tower import VisionSpec


class TowerState:
    """Several images as one ragged batch of rows, and how far they are."""

    __slots__ = (
        "angles",
        "count",
        "destinations",
        "frames",
        "head",
        "hidden",
        "images",
        "keys",
        "num_rows",
        "outputs",
        "patch_rows",
        "products",
        "queries",
        "row",
        "row_end",
        "row_products",
        "stage",
        "values",
        "windows",
    )

    def __init__(
        self, spec: VisionSpec, pixels: Sequence[ImagePixels], dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises ``ValueError`` for pixels that are not those of their grid, and for none."""
        if not pixels:
            raise ValueError("there is no image to encode")
        self.images: list[PatchedImage] = []
        frames: list[int] = []
        windows: list[int] = []
        patch_rows: list[np.ndarray] = []
        destinations: list[np.ndarray] = []
        angles: list[Tensor] = []
        self.num_rows = self.count = 0
        for each in pixels:
            image = PatchedImage(spec, each, self.num_rows, device)
            count, height, width = each.grid
            patches = height * width
            frames += [patches + spec.class_token] * count
            windows += list(image.order.windows) * count
            if spec.class_token:
                starts = self.num_rows + np.arange(count)[:, None] * (patches + 1) + 1
                patch_rows.append((starts + np.arange(patches)).reshape(-1))
            first = self.count + np.arange(count)[:, None] * (patches // spec.merged)
            destinations.append((first + image.order.embeddings).reshape(-1))
            if spec.rope_theta is not None:
                angles.append(axial_angles(spec, image.rows, image.columns).repeat(count, 1))
            self.images.append(image)
            self.num_rows += spec.rows(each.grid)
            self.count += spec.count(each.grid)
        self.frames = Spans(frames)
        self.windows = Spans(windows) if spec.window else self.frames
        self.destinations = torch.from_numpy(np.concatenate(destinations)).to(device)
        """[count] int64: which embedding the patches of each square make."""
        self.patch_rows: Tensor | None = None
        """[count * merged] int64, where rows are not patches alone."""
        if patch_rows:
            self.patch_rows = torch.from_numpy(np.concatenate(patch_rows)).to(device)
        self.angles: tuple[Tensor, Tensor] | None = None
        """Cosines and sines, [rows, head_dim / 2] fp32 each."""
        if angles:
            both = torch.cat(angles)
            self.angles = both.cos(), both.sin()
        shape = (self.num_rows, spec.width)
        self.hidden = torch.empty(shape, dtype=dtype, device=device)
        self.queries = torch.empty((self.num_rows, spec.num_heads, spec.head_dim), dtype=dtype, device=device)
        """Of the layer that is being computed; then what attention makes of them."""
        self.keys = torch.empty((spec.num_heads, self.num_rows, spec.head_dim), dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.outputs = torch.empty((1 + spec.levels, self.count, spec.hidden_size), dtype=dtype, device=device)
        self.stage = self.row = 0
        """Where the next piece begins: which stage of the tower, and which row of that, or embedding."""
        self.head = self.row_end = 0
        """Of attention the next head of the rows up to ``row_end``."""
        self.row_products: int = spec.row_products
        self.products: int = sum(spec.work(each.grid) for each in pixels) * spec.row_products
        """That are left, at most; 0: all is done."""

    @property
    def remaining(self) -> int:
        """Row-layers that are left; 0: the embeddings are there."""
        return -(-self.products // self.row_products)

    @property
    def nbytes(self) -> int:
        """Bytes of tensors that are kept from piece to piece."""
        tensors = [self.hidden, self.queries, self.keys, self.values, self.outputs, self.destinations]
        tensors += self.angles or ()
        tensors += [tensor for image in self.images for tensor in (image.pixels, image.rows, image.columns)]
        if self.patch_rows is not None:
            tensors.append(self.patch_rows)
        return sum(tensor.nbytes for tensor in tensors)

    def finish(self) -> None:
        """All is done; let go of what only the layers need."""
        self.products = 0
        self.hidden = self.queries = self.keys = self.values = self.hidden.new_empty(0)
        self.angles = self.patch_rows = None
