"""From the pixels of an image to the hidden states that a vision tower begins with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blade_llm.models.linear_method import LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.models.vision.geometry import FrameOrder, frame_order
from blade_llm.models.vision.positions import LearnedPositions
from blade_llm.spec.vision.images import ImagePixels
from blade_llm.spec.vision.tower import VisionSpec


class PatchedImage:
    """The pixels of an image, and where its rows are in those of the batch."""

    __slots__ = ("columns", "first", "grid", "order", "pixels", "rows")

    def __init__(self, spec: VisionSpec, image: ImagePixels, first: int, device: torch.device) -> None:
        """``first``: the image's first row. Raises ``ValueError`` for pixels that are not those of the grid."""
        spec.count(image.grid)
        frames, height, width = image.grid
        given, side = image.shape[0], spec.patch_size
        if image.shape not in spec.pixel_shapes(image.grid):
            raise ValueError(f"pixels of shape {list(image.shape)} do not make a grid of {list(image.grid)} patches")
        if len(image.pixels) != np.prod(image.shape):
            raise ValueError(f"{len(image.pixels)} bytes are not pixels of shape {list(image.shape)}")
        pixels = np.frombuffer(image.pixels, np.uint8)
        if not pixels.flags.writeable:  # torch wants it so, though nobody writes
            pixels = pixels.copy()
        self.pixels = torch.from_numpy(pixels).to(device).view(frames, given // frames, height, side, width, side, 3)
        self.grid = image.grid
        self.first = first
        self.order: FrameOrder = frame_order(height, width, spec.merge_size, spec.window)
        self.rows = torch.from_numpy(self.order.rows).to(device)
        """[patches of a frame]: the row of each, in the order of the tower."""
        self.columns = torch.from_numpy(self.order.columns).to(device)


class PatchEmbedding:
    """Makes hidden states of patches: a convolution whose steps are as long as its kernel, as a linear layer."""

    def __init__(self, spec: VisionSpec, parameters: Parameters, method: LinearMethod) -> None:
        self.spec = spec
        weight = parameters.tensor("patches.weight")
        self.device = weight.device
        self.linear = method.shared(weight.flatten(1))
        self.bias = parameters.tensor("patches.bias") if spec.patch_bias else None
        self.nbytes = self.linear.nbytes + (0 if self.bias is None else self.bias.nbytes)
        scale = torch.tensor([spec.rescale / deviation for deviation in spec.std], dtype=torch.float64)
        shift = torch.tensor([-m / s for m, s in zip(spec.mean, spec.std, strict=True)], dtype=torch.float64)
        self.scale = scale.float().view(3, 1, 1, 1).to(self.device)
        self.shift = shift.float().view(3, 1, 1, 1).to(self.device)
        self.positions: LearnedPositions | None = None
        self.class_row: Tensor | None = None
        if spec.class_token:
            self.class_row = parameters.tensor("class_token").view(-1)
            self.nbytes += self.class_row.nbytes
        if spec.positions is not None:
            table = parameters.tensor("positions")
            self.nbytes += table.nbytes
            table = table.view(-1, spec.width)
            if self.class_row is not None:
                self.class_row = self.class_row + table[0]
            self.positions = LearnedPositions(table[spec.class_token :], spec.positions.side)

    def __call__(self, image: PatchedImage, first: int, end: int, dtype: torch.dtype) -> Tensor:
        """The rows of ``image`` from its ``first`` up to ``end``: [rows, width]."""
        _, height, width = image.grid
        each = height * width + self.spec.class_token
        index = torch.arange(first, end, device=self.device)
        frames, places = index // each, index % each
        if self.class_row is None:
            return self._embed(image, frames, places, dtype)
        states = self.class_row.to(dtype).expand(end - first, -1).clone()
        (patches,) = places.nonzero(as_tuple=True)
        if len(patches):
            states[patches] = self._embed(image, frames[patches], places[patches] - 1, dtype)
        return states

    def _embed(self, image: PatchedImage, frames: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
        """The patches at ``places`` of ``frames``, as they are in order there."""
        _, height, width = image.grid
        rows, columns = image.rows[places], image.columns[places]
        pixels = image.pixels[frames, :, rows, :, columns].permute(0, 4, 1, 2, 3)  # [patches, 3, frames, side, side]
        values = torch.addcmul(self.shift, pixels.float(), self.scale)
        values = values.expand(-1, -1, self.spec.temporal_patch_size, -1, -1).reshape(len(places), -1)
        states = self.linear(values.to(dtype))
        if self.bias is not None:
            states += self.bias
        if self.positions is not None:
            states += self.positions(rows, columns, height, width).to(dtype)
        return states
