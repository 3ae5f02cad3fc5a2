"""Vision transformer and projector, from specs: pixels in, embeddings for a text model out, in pieces that a scheduler
chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from blade_llm.models.linear_method import CheckpointWeights, LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.models.vision.geometry import MAX_KEYS, MAX_PIECE
from blade_llm.models.vision.layer import Merger, TowerLayer, attend
from blade_llm.models.vision.patches import PatchEmbedding
from blade_llm.models.vision.state import TowerState
from blade_llm.spec.vision.images import ImagePixels
from blade_llm.spec.vision.tower import VisionSpec


class _Stage(NamedTuple):
    """One pass over the rows of a batch, or over its embeddings."""

    kind: Literal["patches", "project", "attend", "finish", "merge"]
    which: int = 0
    """Of the layer, or of the level that a merger makes."""


class VisionTower:
    """Computes images layer by layer: of each layer the keys and values of all rows, then attention, then what follows
    it. Within these passes it stops after any row, and what it computes does not depend on where."""

    def __init__(self, spec: VisionSpec, parameters: Parameters, method: LinearMethod | None = None) -> None:
        method = method or CheckpointWeights()
        self.spec = spec
        self.dtype: Final = parameters.source.dtype
        self.patches = PatchEmbedding(spec, parameters, method)
        self.layers = [TowerLayer(index, spec, parameters, method) for index in range(spec.num_layers)]
        self.mergers = [Merger(spec, spec.merger, parameters, "merger", method)]
        """Of the embeddings, then of the levels for the layers of the text model."""
        if spec.deepstack_merger is not None:
            places = [f"deepstack.{level}" for level in range(spec.levels)]
            self.mergers += [Merger(spec, spec.deepstack_merger, parameters, place, method) for place in places]
        self.nbytes = self.patches.nbytes
        self.nbytes += sum(layer.nbytes for layer in self.layers) + sum(merger.nbytes for merger in self.mergers)
        self._stages = [_Stage("patches")]
        for index in range(spec.num_layers):
            self._stages += [_Stage("project", index), _Stage("attend", index), _Stage("finish", index)]
            if index in spec.deepstack:
                self._stages.append(_Stage("merge", 1 + spec.deepstack.index(index)))
        self._stages.append(_Stage("merge"))

    def begin(self, pixels: Sequence[ImagePixels]) -> TowerState:
        """Several images as one batch, of which nothing is computed yet. Raises ``ValueError`` for pixels that are not
        those of their grid, for grids that do not divide into embeddings, and for no image."""
        return TowerState(self.spec, pixels, self.dtype, self.patches.device)

    def advance(self, state: TowerState, row_layers: int) -> int:
        """Compute at most so many row-layers (:meth:`~blade_llm.spec.vision.tower.VisionSpec.work`), but a row of one
        pass at least, and return how many it was. Raises ``ValueError`` unless ``row_layers`` is positive."""
        if row_layers < 1:
            raise ValueError(f"{row_layers} row-layers are no work")
        before, budget = state.remaining, row_layers * self.spec.row_products
        left = budget
        while state.products and (taken := self._piece(state, left, budget)):
            left -= taken
        return before - state.remaining

    def embeddings(self, state: TowerState) -> list[Tensor]:
        """Of each image [1 + levels, count, hidden]: what the text model is fed with, then what is added to its hidden
        states after its first layers. Raises ``ValueError`` before all is computed."""
        if state.remaining:
            raise ValueError(f"{state.remaining} row-layers of the images are still to be computed")
        counts = [self.spec.count(image.grid) for image in state.images]
        if len(counts) == 1:
            return [state.outputs]
        return [part.contiguous() for part in torch.split(state.outputs, counts, dim=1)]  # each may outlive the others

    def _piece(self, state: TowerState, left: int, budget: int) -> int:
        """Compute one piece of the current stage, of at most ``left`` products, and return how many it took; 0 where
        that is too little even for the smallest, unless it is the whole ``budget``."""
        stage = self._stages[state.stage]
        compute = self._attend if stage.kind == "attend" else self._rows
        products = compute(stage, state, left, budget)
        state.products -= products
        if products and state.row == (state.count if stage.kind == "merge" else state.num_rows):
            state.stage, state.row = state.stage + 1, 0
            if state.stage == len(self._stages):
                state.finish()
        return products

    def _attend(self, stage: _Stage, state: TowerState, left: int, budget: int) -> int:
        """Attention, of so many rows that one head of them is a quarter of the budget, and of as many heads of those as
        are within it.

        What a few rows take is mostly to bring the keys and values of a large image, so that many rows of one head are
        less work than few of all.
        """
        spec, first = self.spec, state.row
        spans = state.frames if stage.which in spec.full_layers else state.windows
        most = state.row_end if state.head else min(state.num_rows, first + MAX_PIECE)
        state.row_end, each = spans.affordable(first, most, budget // 4, spec.pair_products, whole=bool(state.head))
        if each > left < budget:
            return 0
        keys = each // (spec.pair_products * (state.row_end - first))  # that a row sees
        count = max(1, min(left // each, MAX_KEYS * spec.num_heads // keys))
        heads = slice(state.head, min(spec.num_heads, state.head + count))
        attend(state.queries[first : state.row_end, heads], state.keys[heads], state.values[heads], spans, first)
        state.head = heads.stop
        if state.head == spec.num_heads:
            state.row, state.head = state.row_end, 0
        return each * (heads.stop - heads.start)

    def _rows(self, stage: _Stage, state: TowerState, left: int, budget: int) -> int:
        """Any other stage, of as many rows as are within the budget."""
        spec, first = self.spec, state.row
        match stage.kind:
            case "patches":
                row = spec.width * spec.patch_elements
            case "project":
                row = 3 * spec.width**2
            case "merge":
                row = spec.merger_products(self.mergers[stage.which].merger)
            case _:
                row = spec.row_products - 3 * spec.width**2
        if row > left < budget:
            return 0
        length = state.count if stage.kind == "merge" else state.num_rows
        end = min(length, first + MAX_PIECE, first + max(1, left // row))
        match stage.kind:
            case "patches":
                self._embed(state, first, end)
            case "project":
                angles = state.angles and (state.angles[0][first:end], state.angles[1][first:end])
                written = state.queries[first:end], state.keys[:, first:end], state.values[:, first:end]
                self.layers[stage.which].project(state.hidden[first:end], angles, *written)
            case "merge":
                merged = self.mergers[stage.which](self._squares(state, first, end))
                state.outputs[stage.which].index_copy_(0, state.destinations[first:end], merged)
            case _:
                self.layers[stage.which].finish(state.hidden[first:end], state.queries[first:end])
        state.row = end
        return (end - first) * row

    def _embed(self, state: TowerState, first: int, end: int) -> None:
        for image in state.images:
            begin = max(first, image.first)
            stop = min(end, image.first + self.spec.rows(image.grid))
            if begin < stop:
                rows = self.patches(image, begin - image.first, stop - image.first, self.dtype)
                state.hidden[begin:stop] = rows

    def _squares(self, state: TowerState, first: int, end: int) -> Tensor:
        """The hidden states of the patches of some embeddings."""
        patches = slice(first * self.spec.merged, end * self.spec.merged)
        if state.patch_rows is None:
            return state.hidden[patches]
        return state.hidden.index_select(0, state.patch_rows[patches])
