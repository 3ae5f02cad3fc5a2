"""Runs the vision tower in the pieces that plans name, and keeps the embeddings until plans free them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from blade_llm.scheduling.plan import StepPlan
from blade_llm.spec.vision.images import ImagePixels
from blade_llm.spec.vision.tower import VisionSpec


class TowerState(Protocol):
    """Images on their way through a tower."""

    @property
    def remaining(self) -> int:
        """Row-layers that are left; 0: the embeddings are there."""


State = TypeVar("State", bound=TowerState)


class Tower(Protocol[State]):
    """What makes embeddings: a :class:`~blade_llm.models.vision.tower.VisionTower`."""

    spec: VisionSpec
    nbytes: int

    def begin(self, pixels: Sequence[ImagePixels]) -> State:
        """Several images as one batch, of which nothing is computed yet."""

    def advance(self, state: State, row_layers: int) -> int:
        """Compute about so many row-layers, and return how many it was."""

    def embeddings(self, state: State) -> list[Tensor]:
        """Of each image [1 + levels, count, hidden]."""


class _Run(Generic[State]):
    """A run of the tower, and how far plans have it."""

    def __init__(self, tower: Tower[State], pixels: list[ImagePixels]) -> None:
        self.state = tower.begin(pixels)
        self._left = self.state.remaining
        """Row-layers that no plan has yet."""

    def advance(self, tower: Tower[State], row_layers: int) -> bool:
        """Compute as far as plans have it, this chunk included; whether that was the last. The tower may round each
        piece up, and be done before."""
        self._left = max(0, self._left - row_layers)
        while (remaining := self.state.remaining) > self._left:
            tower.advance(self.state, remaining - self._left)
        return not self._left


class ImageEncoder(Generic[State]):
    """The tower of a runner and the embeddings that it has made.

    Attributes:
        embeddings: by digest, [1 + levels, count, hidden] each.
    """

    def __init__(self, tower: Tower[State]) -> None:
        self.tower = tower
        self.embeddings: dict[bytes, Tensor] = {}
        self._pixels: dict[bytes, ImagePixels] = {}
        self._runs: dict[tuple[bytes, ...], _Run[State]] = {}

    def apply(self, plan: StepPlan) -> None:
        """Free, take in and encode what ``plan`` says."""
        for digest in plan.freed_images:
            self._free(digest)
        for image in plan.new_images:
            self._pixels[image.digest] = image
        for chunk in plan.encoder:
            run = self._runs.get(chunk.digests)
            if run is None:
                pixels = [self._pixels.pop(digest) for digest in chunk.digests]
                run = self._runs[chunk.digests] = _Run(self.tower, pixels)
            if run.advance(self.tower, chunk.row_layers):
                del self._runs[chunk.digests]
                made = self.tower.embeddings(run.state)
                self.embeddings.update(zip(chunk.digests, made, strict=True))

    def _free(self, digest: bytes) -> None:
        self.embeddings.pop(digest, None)
        self._pixels.pop(digest, None)
        for digests in [digests for digests in self._runs if digest in digests]:
            del self._runs[digests]
