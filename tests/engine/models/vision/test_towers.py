"""Vision towers make the embeddings that transformers makes, however images are batched and cut into pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.live_tensors import LiveTensors
from engine_support.vision_towers import ROWS, encode, expected, open_tower, random_pixels, read_spec, save_model
from safetensors.torch import load_file, save_file

from blade_llm.models.errors import ModelFilesError
from blade_llm.models.vision.geometry import MAX_KEYS, MAX_PIECE
from blade_llm.models.vision.memory import activation_bytes, state_bytes, tower_bytes
from blade_llm.models.vision.tower import VisionTower
from blade_llm.spec.vision.images import ImagePixels
from blade_llm.spec.vision.tower import Grid, VisionSpec
from blade_llm.weights.vision import load_tower

GRIDS: tuple[Grid, ...] = (
    (1, 2, 2),
    (1, 14, 6),
    (1, 6, 18),
    (1, 2, 26),
    (1, 12, 12),
    (1, 34, 2),
    (1, 8, 10),
    (1, 10, 8),
)
"""Flat ones, narrow ones, ones that windows do not divide; in patches."""


class Case:
    """A model, and its tower."""

    def __init__(self, row: str, folder: Path) -> None:
        self.row, self.folder = row, folder
        self.reference: Any = save_model(folder, row)
        self.spec: VisionSpec = read_spec(self.reference)
        self.tower: VisionTower = open_tower(folder, self.spec)

    def image(self, index: int) -> ImagePixels:
        """One of several; of InternVL one to three tiles."""
        grid = (1 + index % 3, 6, 6) if self.spec.family == "internvl" else GRIDS[index]
        return random_pixels(self.spec, grid, index)


@pytest.fixture(scope="module", params=list(ROWS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_images_in_one_batch(case: Case, count: int) -> None:
    images = [case.image(index) for index in range(count)]
    found = encode(case.tower, images)
    for mine, theirs in zip(found, expected(case.reference, case.spec, images), strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_every_image_alone(case: Case) -> None:
    for index in range(len(GRIDS)):
        images = [case.image(index)]
        torch.testing.assert_close(
            encode(case.tower, images)[0], expected(case.reference, case.spec, images)[0], atol=1e-4, rtol=1e-4
        )


def test_a_large_image(case: Case) -> None:
    """Of more rows than are computed at a time, and more keys than all heads see at a time."""
    grid = (31, 6, 6) if case.spec.family == "internvl" else (1, 66, 64)
    assert case.spec.rows(grid) > (MAX_PIECE if case.spec.family == "internvl" else MAX_KEYS)
    images = [random_pixels(case.spec, grid, 1), case.image(2)]
    for mine, theirs in zip(encode(case.tower, images), expected(case.reference, case.spec, images), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("row_layers", [1, 3, 17, 64, 1000])
def test_pieces_change_nothing(case: Case, row_layers: int) -> None:
    images = [case.image(index) for index in (1, 4, 2)]
    for mine, whole in zip(encode(case.tower, images, row_layers), encode(case.tower, images), strict=True):
        torch.testing.assert_close(mine, whole, atol=1e-5, rtol=1e-5)


def test_images_of_a_batch_do_not_see_each_other(case: Case) -> None:
    images = [case.image(index) for index in (4, 2, 6)]
    alone = encode(case.tower, images[1:2])[0]
    torch.testing.assert_close(encode(case.tower, images, 50)[1], alone, atol=1e-5, rtol=1e-5)


def test_frames(case: Case) -> None:
    """Of a video, beside a picture; the patches of one frame are those of several pixel frames, if the tower has them
    so, and do not see those of another."""
    if case.spec.family == "internvl":
        pytest.skip("its videos are tiles like any others")
    images = [
        random_pixels(case.spec, (3, 8, 10), 1, frames=3 * case.spec.temporal_patch_size),
        random_pixels(case.spec, (1, 6, 6), 2, frames=case.spec.temporal_patch_size),
        case.image(1),
    ]
    for mine, theirs in zip(encode(case.tower, images, 40), expected(case.reference, case.spec, images), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_work_is_counted_as_the_spec_foresees(case: Case) -> None:
    """What an image takes is known before, pieces are as small as they are asked for, and all of them together are
    that."""
    images = [case.image(index) for index in (1, 3)]
    state = case.tower.begin(images)
    total = sum(case.spec.work(image.grid) for image in images)
    assert state.remaining == total
    done, asked = 0, 9
    assert case.spec.merger_products(case.spec.merger) < asked * case.spec.row_products
    while state.remaining:
        before = state.products
        done += (step := case.tower.advance(state, asked))
        assert step <= asked + 1  # as a whole number
        assert state.products < before
    assert done == total
    assert case.tower.advance(state, asked) == 0


def test_bf16_is_as_near_as_transformers(case: Case, tmp_path: Path) -> None:
    """To what the same bf16 weights make in fp32."""
    reference = save_model(tmp_path, case.row, torch.bfloat16)
    tower = open_tower(tmp_path, case.spec, torch.bfloat16)
    images = [case.image(index) for index in (0, 1, 2)]
    exact = expected(reference.float(), case.spec, images)
    theirs = expected(reference.bfloat16(), case.spec, images)
    for mine, other, truth in zip(encode(tower, images, 100), theirs, exact, strict=True):
        assert mine.dtype == torch.bfloat16
        scale = truth.abs().mean()
        assert (mine - truth).abs().mean() < 1.5 * (other - truth).abs().mean() + 0.002 * scale


def test_names_of_both_forms(case: Case, tmp_path: Path) -> None:
    """Older checkpoints have no ``model.`` before the tower's tensors, of a text model's that have it."""
    tensors = load_file(case.folder / "model.safetensors")
    towers = ("visual.", "vision_tower.", "multi_modal_projector.")
    longer = {"model." + name.removeprefix("model.") if _has(name, towers) else name: t for name, t in tensors.items()}
    older = {name.removeprefix("model.") if _has(name, towers) else name: t for name, t in tensors.items()}
    assert longer.keys() != older.keys()
    images = [case.image(1)]
    for number, form in enumerate((longer, older)):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_file(form, folder / "model.safetensors")
        torch.testing.assert_close(
            encode(open_tower(folder, case.spec), images)[0], encode(case.tower, images)[0], atol=0, rtol=0
        )
    missing = next(
        name
        for name in older
        if name.endswith(("mlp.fc2.weight", "down_proj.weight", "fc2.weight")) and _has(name, towers)
    )
    folder = tmp_path / "incomplete"
    folder.mkdir()
    save_file({name: tensor for name, tensor in older.items() if name != missing}, folder / "model.safetensors")
    with pytest.raises(ModelFilesError, match=missing):
        open_tower(folder, case.spec)


def _has(name: str, towers: tuple[str, ...]) -> bool:
    return name.removeprefix("model.").startswith(towers)


def test_bytes_are_foreseen(case: Case) -> None:
    assert case.tower.nbytes == pytest.approx(tower_bytes(case.spec, "float32"), rel=0.25)
    images = [case.image(index) for index in (1, 4)]
    grids = [image.grid for image in images]
    state = case.tower.begin(images)
    foreseen = state_bytes(case.spec, "float32", grids)
    assert state.nbytes <= foreseen <= 1.2 * state.nbytes
    assert activation_bytes(case.spec, "float32", grids) > foreseen
    held = state.nbytes
    case.tower.advance(state, 10**9)
    assert state.nbytes < held


def test_no_step_takes_more_than_is_foreseen(case: Case) -> None:
    """Of a large image, in one piece of work and in many."""
    grid = (31, 6, 6) if case.spec.family == "internvl" else (1, 66, 64)
    for row_layers in (5000, 10**9):
        with LiveTensors() as memory:
            encode(case.tower, [random_pixels(case.spec, grid, 1)], row_layers)
        foreseen = activation_bytes(case.spec, "float32", [grid])
        assert state_bytes(case.spec, "float32", [grid]) < memory.most <= foreseen < 2.5 * memory.most


def test_dummy_weights(case: Case) -> None:
    tower = load_tower(
        Path("/nonexistent"), case.spec, load_format="dummy", device=torch.device("cpu"), dtype=torch.float32
    )
    found = encode(tower, [case.image(1)])[0]
    assert found.isfinite().all()
    assert found.std() > 0


def test_what_is_no_image_is_refused(case: Case) -> None:
    tower, image = case.tower, case.image(1)
    frames, height, width = image.grid
    with pytest.raises(ValueError, match="no image"):
        tower.begin([])
    with pytest.raises(ValueError, match=r"do not divide|are not the"):
        tower.begin([random_pixels(case.spec, (frames, height + 1, width), 0)])
    with pytest.raises(ValueError, match="do not make a grid"):
        tower.begin([ImagePixels(image.digest, image.grid, (*image.shape[:3], 4), image.pixels)])
    with pytest.raises(ValueError, match="do not make a grid"):
        tower.begin([ImagePixels(image.digest, (frames + 2, height, width), image.shape, image.pixels)])
    with pytest.raises(ValueError, match="bytes are not pixels"):
        tower.begin([ImagePixels(image.digest, image.grid, image.shape, image.pixels[1:])])
    state = tower.begin([image])
    with pytest.raises(ValueError, match="still to be computed"):
        tower.embeddings(state)
    with pytest.raises(ValueError, match="no work"):
        tower.advance(state, 0)


def test_a_spec_that_makes_no_sense_is_refused(case: Case) -> None:
    spec = case.spec
    with pytest.raises(ValueError, match="not a multiple of 7 heads"):
        replace(spec, num_heads=7)
    with pytest.raises(ValueError, match="do not divide into squares"):
        replace(spec, window=3)
    with pytest.raises(ValueError, match="not the ones that are named"):
        replace(spec, full_layers=(99,))
    with pytest.raises(ValueError, match="must ascend"):
        replace(spec, deepstack=(1, 0), deepstack_merger=spec.merger)
