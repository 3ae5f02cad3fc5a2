"""The runner's encoder follows plans, whatever the tower makes of the size of a piece."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch
from engine_support.images import SPEC, image_of, pixels_of
from torch import Tensor

from blade_llm.models.vision.patches import PatchedImage
from blade_llm.runner.vision.encoder import ImageEncoder
from blade_llm.scheduling.plan import EncoderChunk, StepPlan
from blade_llm.spec.vision.images import ImagePixels, ImageSpan


class State:
    def __init__(self, pixels: list[ImagePixels]) -> None:
        self.pixels = pixels
        self.remaining = sum(SPEC.work(image.grid) for image in pixels)


class RoundingTower:
    """Computes whole multiples of ``multiple`` row-layers, and makes each pixel an embedding."""

    spec = SPEC
    nbytes = 0

    def __init__(self, multiple: int) -> None:
        self._multiple = multiple

    def begin(self, pixels: Sequence[ImagePixels]) -> State:
        return State(list(pixels))

    def advance(self, state: State, row_layers: int) -> int:
        assert row_layers > 0
        done = min(state.remaining, -(-row_layers // self._multiple) * self._multiple)
        state.remaining -= done
        return done

    def embeddings(self, state: State) -> list[Tensor]:
        assert not state.remaining
        values = [np.frombuffer(image.pixels, np.uint8).reshape(1, -1, 3).copy() for image in state.pixels]
        return [torch.from_numpy(value).float() for value in values]


def plan_of(images: list[ImageSpan], row_layers: int, *, new: bool = False, freed: list[bytes] = []) -> StepPlan:  # noqa: B006 - read only
    digests = tuple(image.digest for image in images)
    encoder = [EncoderChunk(digests, row_layers)] if row_layers else []
    pixels = [pixels_of(image) for image in images] if new else []
    return StepPlan(0, [], freed_images=freed, new_images=pixels, encoder=encoder)


@pytest.mark.parametrize("multiple", [1, 7, 1000])
@pytest.mark.parametrize("piece", [1, 13, 500])
def test_embeddings_are_there_when_the_plans_have_the_whole_run(multiple: int, piece: int) -> None:
    images = [image_of("a", 0, 9), image_of("b", 0, 4)]
    encoder, left = ImageEncoder(RoundingTower(multiple)), sum(SPEC.work(image.grid) for image in images)
    new = True
    while left:
        assert not encoder.embeddings
        count = min(piece, left)
        encoder.apply(plan_of(images, count, new=new))
        left, new = left - count, False
    assert [len(encoder.embeddings[image.digest][0]) for image in images] == [9, 4]
    encoder.apply(plan_of(images, 0, freed=[images[0].digest]))
    assert list(encoder.embeddings) == [images[1].digest]


def test_a_run_that_ends_early_leaves_nothing_and_can_begin_again() -> None:
    image = image_of("a", 0, 9)
    encoder, work = ImageEncoder(RoundingTower(1)), SPEC.work(image.grid)
    encoder.apply(plan_of([image], 5, new=True))
    encoder.apply(plan_of([image], work, new=True, freed=[image.digest]))
    assert list(encoder.embeddings) == [image.digest]


class Memory(bytearray):
    """What a message's memory is: it may be written to, and it is known when it is gone."""


@pytest.mark.parametrize("aborted", [False, True])
def test_pixels_are_let_go_of_with_their_run(aborted: bool) -> None:
    image = image_of("a", 0, 9)
    encoder, work = ImageEncoder(RoundingTower(1)), SPEC.work(image.grid)
    memory = Memory(pixels_of(image).pixels)
    gone = weakref.ref(memory)
    pixels = msgspec.structs.replace(pixels_of(image), pixels=memoryview(memory))
    encoder.apply(msgspec.structs.replace(plan_of([image], 5), new_images=[pixels]))
    del memory, pixels
    assert gone() is not None
    encoder.apply(plan_of([image], 0, freed=[image.digest]) if aborted else plan_of([image], work - 5))
    assert gone() is None


def test_the_tower_reads_the_memory_that_a_message_came_in() -> None:
    """And copies what it must not write to, without a warning."""
    image = image_of("a", 0, 9)
    memory = Memory(pixels_of(image).pixels)
    pixels = msgspec.structs.replace(pixels_of(image), pixels=memoryview(memory))
    patched = PatchedImage(SPEC, pixels, 0, torch.device("cpu"))
    memory[0] ^= 255
    assert bytes(patched.pixels.flatten().tolist()) == bytes(memory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = PatchedImage(SPEC, pixels_of(image), 0, torch.device("cpu"))
    assert bytes(copied.pixels.flatten().tolist()) == pixels_of(image).pixels
