"""Processor files: those that transformers writes, those of published models, and broken ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from engine_support.image_cases import PROCESSORS
from engine_support.image_references import reference
from transformers.models.internvl.processing_internvl import InternVLProcessor

from blade_llm.multimodal.errors import ProcessorFilesError
from blade_llm.multimodal.processors import QwenProcessor, TiledProcessor
from blade_llm.multimodal.processors.reading import read_processor

QWEN: dict[str, Any] = {"model_type": "qwen2_vl", "vision_config": {"patch_size": 14}}
INTERNVL: dict[str, Any] = {
    "model_type": "internvl",
    "downsample_ratio": 0.5,
    "vision_config": {"patch_size": [14, 14], "image_size": [448, 448]},
}
TILE = {"size": {"height": 448, "width": 448}}
BAD_NUMBERS = (math.nan, math.inf, True, 10**400, "0.5", [0.5])
HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def _folder(path: Path, config: object, **files: object) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    for name, value in files.items():
        (path / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_model_without_images(tmp_path: Path) -> None:
    assert read_processor(_folder(tmp_path, {"model_type": "qwen2"})) is None
    assert read_processor(tmp_path / "nowhere") is None


@pytest.mark.parametrize("name", PROCESSORS)
def test_files_that_transformers_writes(name: str, tmp_path: Path) -> None:
    processor = PROCESSORS[name]
    reference(processor).save_pretrained(tmp_path)
    assert (tmp_path / "preprocessor_config.json").exists()
    if isinstance(processor, QwenProcessor):
        assert read_processor(_folder(tmp_path, QWEN)) == processor
    else:
        config = INTERNVL | {"image_seq_length": processor.tile_tokens}
        assert read_processor(_folder(tmp_path, config)) == processor


@pytest.mark.parametrize(
    ("config", "file", "expected"),
    [
        (  # Qwen2-VL and Qwen2.5-VL
            QWEN | {"model_type": "qwen2_5_vl"},
            {"min_pixels": 3136, "max_pixels": 12845056, "image_processor_type": "Qwen2VLImageProcessor"},
            QwenProcessor(3136, 12845056),
        ),
        (  # Qwen3-VL
            QWEN | {"model_type": "qwen3_vl"},
            {
                "size": {"longest_edge": 16777216, "shortest_edge": 65536},
                "patch_size": 16,
                "image_processor_type": "Qwen2VLImageProcessorFast",
                **HALVES,
            },
            QwenProcessor(65536, 16777216, patch_size=16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        ),
        (QWEN, {"size": {"min_pixels": 9, "max_pixels": 900}}, QwenProcessor(9, 900)),
        (QWEN, {"size": {"shortest_edge": 9, "longest_edge": 900}, "max_pixels": 800}, QwenProcessor(9, 800)),
        (QWEN, {}, QwenProcessor(56 * 56, 28 * 28 * 1280)),
        (  # InternVL3-hf
            INTERNVL,
            {
                "crop_to_patches": False,
                "max_patches": 12,
                "min_patches": 1,
                "size": {"height": 448, "width": 448},
                "image_processor_type": "GotOcr2ImageProcessorFast",
            },
            TiledProcessor(448, 448, 14, 256),
        ),
    ],
)
def test_published_files(config: object, file: object, expected: object, tmp_path: Path) -> None:
    assert read_processor(_folder(tmp_path, config, preprocessor_config=file)) == expected


def test_a_nested_processor_comes_first(tmp_path: Path) -> None:
    _folder(tmp_path, QWEN, preprocessor_config={"max_pixels": 900}, processor_config={"processor_class": "X"})
    assert read_processor(tmp_path) == QwenProcessor(max_pixels=900)
    _folder(tmp_path, QWEN, processor_config={"image_processor": {"max_pixels": 700}})
    assert read_processor(tmp_path) == QwenProcessor(max_pixels=700)


def test_tokens_around_an_image(tmp_path: Path) -> None:
    """Written as old and new tokenizers write them."""
    file = {"size": {"height": 448, "width": 448}}
    for tokenizer in (
        {"start_image_token": "<a>", "end_image_token": {"content": "<b>"}},
        {"extra_special_tokens": {"start_image_token": "<a>", "end_image_token": "<b>"}},
    ):
        folder = _folder(tmp_path, INTERNVL, preprocessor_config=file, tokenizer_config=tokenizer)
        processor = read_processor(folder)
        assert processor is not None
        assert processor.surrounding == ("<a>", "<b>")


@pytest.mark.parametrize("size", [(50, 190), (9, 9), (300, 40)])
def test_internvl_cuts_into_tiles_whatever_its_file_says(size: tuple[int, int], tmp_path: Path) -> None:
    """As ``InternVLProcessor`` does, which says ``crop_to_patches`` in every call."""
    processor = PROCESSORS["internvl"]
    assert isinstance(processor, TiledProcessor)
    images = reference(processor)
    images.crop_to_patches = False
    images.save_pretrained(tmp_path)
    config = INTERNVL | {"image_seq_length": processor.tile_tokens}
    assert read_processor(_folder(tmp_path, config)) == processor
    tiles = images.get_number_of_image_patches(*size, InternVLProcessor.images_kwargs)
    assert processor.grid(*size, processor.own_bounds)[0] == tiles


@pytest.mark.parametrize(
    ("config", "file", "message"),
    [
        ({"model_type": "other", "vision_config": {}}, {}, "model_type 'other' are not supported, only those of"),
        (QWEN, None, "preprocessor_config.json is missing"),
        (QWEN, "{", "not valid JSON"),
        (QWEN, "[]", "must hold a JSON object"),
        (QWEN, {"image_processor_type": "CLIPImageProcessor"}, "CLIPImageProcessor.*only Qwen2VL"),
        (QWEN, {"do_resize": False}, "do_resize must be true"),
        (QWEN, {"max_pixels": "many"}, "max_pixels must be a positive whole number, not 'many'"),
        (QWEN, {"patch_size": 0}, "patch_size"),
        (QWEN, {"size": 3}, "size must be an object"),
        (QWEN, {"image_mean": [0.5]}, "image_mean must be three numbers"),
        (QWEN, {"image_std": [0.5, 0.5, 0]}, "image_std must be positive"),
        (QWEN, {"image_std": {"a": 1}}, "image_std must be three numbers"),
        (QWEN, {"resample": 9}, "resample"),
        (QWEN, {"rescale_factor": 0}, "rescale_factor"),
        *(
            (QWEN, {"rescale_factor": value}, "preprocessor_config.json: rescale_factor must be a positive number")
            for value in BAD_NUMBERS
        ),
        *((QWEN, {"image_std": value}, "preprocessor_config.json: image_std must be") for value in BAD_NUMBERS),
        *(
            (QWEN, {"image_mean": [0.5, value, 0.5]}, "preprocessor_config.json: image_mean must be three numbers")
            for value in BAD_NUMBERS
        ),
        (
            QWEN | {"model_type": ["qwen2_vl"]},
            {},
            r"config.json: images of model_type \['qwen2_vl'\] are not supported",
        ),
        *(
            (INTERNVL | {"downsample_ratio": value}, TILE, "/config.json: downsample_ratio must be a positive number")
            for value in (*BAD_NUMBERS, 0)
        ),
        (INTERNVL | {"downsample_ratio": 1e300}, TILE, r"/config.json: downsample_ratio 1e\+300 is more than 1"),
        (INTERNVL | {"vision_config": {"patch_size": "14"}}, {}, "/config.json: patch_size must be a positive whole"),
        (INTERNVL | {"image_seq_length": 256.0}, TILE, "do not make image_seq_length 256.0"),
        (INTERNVL, {"size": {"height": 100, "width": 448}}, "no multiple of patch_size 14"),
        (INTERNVL, {"size": {"height": 448}}, "384 is no multiple|384 x"),
        (INTERNVL, {"size": {"height": 56, "width": 56}}, "do not make image_seq_length 256"),
    ],
)
def test_files_that_are_refused(config: object, file: object, message: str, tmp_path: Path) -> None:
    files = {} if file is None else {"preprocessor_config": file}
    with pytest.raises(ProcessorFilesError, match=message):
        read_processor(_folder(tmp_path, config, **files))
