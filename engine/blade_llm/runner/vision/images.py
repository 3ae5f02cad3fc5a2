"""What a runner keeps of images: the encoder, where the live requests have images, and what a step is fed with.

Of several ranks each encodes them for itself: a tower is small beside its text model, and its embeddings, several
megabytes an image, need not travel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blade_llm.runner.staging import Staging
from blade_llm.runner.vision.encoder import ImageEncoder, Tower
from blade_llm.runner.vision.memory import grid_of
from blade_llm.runner.vision.positions import AxisTable
from blade_llm.scheduling.plan import StepPlan
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_llm.spec.vision.tower import VisionSpec


@dataclass(frozen=True, slots=True)
class StepImages:
    """The image tokens of a step."""

    rows: Tensor
    """[n] int64: which of the step's tokens."""
    embeddings: Tensor
    """[1 + levels, n, hidden]: levels of deepstack, if any, from the stage's first layer on, as
    :attr:`~blade_llm.layers.step.StepMetadata.image_embeddings`."""


class RunnerImages:
    """The images of all slots.

    Attributes:
        axes: the positions on three axes; None: those of the model have one.
    """

    def __init__(
        self, spec: VisionSpec, tower: Tower[Any] | None, device: torch.device, *, has_axes: bool, first_layer: int = 0
    ) -> None:
        """``tower``: None in a stage of a pipeline that needs no embeddings. ``has_axes``: the model's positions have
        three axes. ``first_layer``: of the stage."""
        self.encoder = None if tower is None else ImageEncoder(tower)
        self.axes: AxisTable | None = None
        self._spec = spec
        self._has_axes = has_axes
        self._first_layer = first_layer
        self._device = device
        self._spans: dict[int, tuple[ImageSpan, ...]] = {}
        """By slot, of the requests that have some."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tower's weights."""
        return 0 if self.encoder is None else self.encoder.tower.nbytes

    def attach(self, token_ids: Tensor) -> AxisTable | None:
        """Allocate what goes with the slots' tables; ``token_ids``: [slots + 1, positions]."""
        self._spans.clear()
        self.axes = None
        if self._has_axes:
            slots, positions = token_ids.shape
            self.axes = AxisTable(slots, positions, self._spec.merge_size, self._device)
        return self.axes

    def warm_up(self) -> None:
        """Try the tower out."""
        if self.encoder is None:
            return
        tower = self.encoder.tower
        state = tower.begin([_black_image(tower.spec)])
        while state.remaining:
            tower.advance(state, state.remaining)

    def apply(self, plan: StepPlan) -> StepImages | None:
        """Take in what ``plan`` says of images, and encode; what the step's tokens are fed with, None for none."""
        if self.axes is not None and plan.new_requests:
            self.axes.apply(plan)
        encoder = self.encoder
        if encoder is None:
            return None
        for slot in plan.freed_slots:
            self._spans.pop(slot, None)
        for new in plan.new_requests:
            self._spans.pop(new.slot, None)
            if new.images:
                self._spans[new.slot] = new.images
        if plan.encoder or plan.freed_images:
            encoder.apply(plan)
        return self._gather(plan, encoder.embeddings) if self._spans else None

    def _gather(self, plan: StepPlan, of_images: Mapping[bytes, Tensor]) -> StepImages | None:
        rows: list[np.ndarray] = []
        parts: list[Tensor] = []
        first = 0
        for chunk in plan.chunks:
            end = chunk.start + chunk.count
            for image in self._spans.get(chunk.slot, ()):
                begin, stop = max(chunk.start, image.start), min(end, image.end)
                if begin < stop:
                    rows.append(np.arange(begin, stop) + (first - chunk.start))
                    some = of_images[image.digest][self._first_layer :]
                    parts.append(some[:, begin - image.start : stop - image.start])
            first += chunk.count
        if not rows:
            return None
        staging = Staging(self._device)
        staging.add(np.concatenate(rows))
        embeddings = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return StepImages(staging.send()[0], embeddings)


def _black_image(spec: VisionSpec) -> ImagePixels:
    """A small one."""
    grid = frames, height, width = grid_of(spec, 4)
    shape = (frames, height * spec.patch_size, width * spec.patch_size, 3)
    return ImagePixels(bytes(32), grid, shape, bytes(math.prod(shape)))
