"""Small random models with images in the engine, and what transformers generates for the same images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.feature_load import free_drafts
from engine_support.normalise import normalised_patches, normalised_pixels
from engine_support.thread_ranks import ThreadRanks
from engine_support.tiny_models import engine_config
from engine_support.vision_positions import behind_videos
from engine_support.vision_rows import QWEN_TOKENS
from engine_support.vision_towers import random_pixels

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.dtypes import DTYPE_BYTES
from blade_llm.multimodal.content import content_digest
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.images.limits import EncoderLimits
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_llm.spec.vision.tower import Grid, VisionSpec

IMAGE, VIDEO = QWEN_TOKENS["image_token_id"], QWEN_TOKENS["video_token_id"]


@dataclass
class VisionModel:
    """A saved model, its configuration with its tower, and transformers' own of it."""

    folder: Path
    config: ModelConfig
    reference: Any

    @property
    def spec(self) -> VisionSpec:
        assert self.config.vision is not None
        return self.config.vision


def save_vision_model(folder: Path, row: str) -> VisionModel:
    """One of :data:`~engine_support.vision_rows.VISION_ROWS`."""
    reference = save_row(folder, ROWS[row])
    return VisionModel(folder, load_model_config(folder), reference)


@dataclass
class Prompt:
    """Text and images."""

    tokens: list[int] = field(default_factory=list)
    spans: list[ImageSpan] = field(default_factory=list)
    pixels: list[ImagePixels] = field(default_factory=list)
    videos: list[tuple[Grid, float]] = field(default_factory=list)
    """Of each video the whole grid, and the seconds between its patches."""

    def text(self, count: int, seed: int) -> Prompt:
        """Append random tokens."""
        random = torch.Generator().manual_seed(seed)
        self.tokens += torch.randint(2, IMAGE, (count,), generator=random).tolist()
        return self

    def image(self, spec: VisionSpec, grid: Grid, seed: int) -> Prompt:
        """Append a random image."""
        pixels = random_pixels(spec, grid, seed)
        span = ImageSpan(len(self.tokens), spec.count(grid), pixels.digest, grid)
        self.tokens += [IMAGE] * span.count
        self.spans.append(span)
        self.pixels.append(pixels)
        return self

    def video(self, spec: VisionSpec, grid: Grid, seed: int, seconds: float = 1.0) -> Prompt:
        """Append a random video. Of Qwen3-VL each patch in time is between texts; a second of Qwen2.5-VL is 2
        positions."""
        patches = [(1, *grid[1:])] * grid[0] if spec.family == "qwen3_vl" else [grid]
        interval = 2 * seconds if spec.family == "qwen2_5_vl" else 1.0
        for index, each in enumerate(patches):
            if spec.family == "qwen3_vl":
                self.text(3, seed + index)
            found = random_pixels(spec, each, seed + index, each[0] * spec.temporal_patch_size)
            digest = content_digest(each, found.shape, found.pixels, interval)
            self.pixels.append(msgspec.structs.replace(found, digest=digest))
            self.spans.append(ImageSpan(len(self.tokens), spec.count(each), digest, each, interval))
            self.tokens += [VIDEO] * spec.count(each)
        self.videos.append((grid, seconds))
        return self

    def request(self, name: str, max_tokens: int, **fields: Any) -> GenerateRequest:
        """A greedy request."""
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=1, logprobs=1)
        distinct = list({image.digest: image for image in self.pixels}.values())
        values = {"images": self.spans, "pixels": distinct, "sampling": sampling, **fields}
        return GenerateRequest(request_id=name, prompt_token_ids=self.tokens, **values)


def inputs_of(spec: VisionSpec, prompt: Prompt) -> dict[str, torch.Tensor]:
    """The images as transformers takes them."""
    pairs = list(zip(prompt.pixels, prompt.spans, strict=True))
    images = [pixels for pixels, span in pairs if prompt.tokens[span.start] == IMAGE]
    films = [pixels for pixels, span in pairs if prompt.tokens[span.start] == VIDEO]
    if spec.family == "internvl":
        values = [normalised_pixels(each, spec) for each in images]
        return {"pixel_values": torch.from_numpy(np.concatenate(values))} if images else {}
    inputs: dict[str, torch.Tensor] = {}
    if images:
        inputs["pixel_values"] = torch.from_numpy(np.concatenate([normalised_patches(each, spec) for each in images]))
        inputs["image_grid_thw"] = torch.tensor([each.grid for each in images])
    if films:
        patches = [normalised_patches(each, spec) for each in films]
        inputs["pixel_values_videos"] = torch.from_numpy(np.concatenate(patches))
        inputs["video_grid_thw"] = torch.tensor([grid for grid, _ in prompt.videos])
        if spec.family == "qwen2_5_vl":
            inputs["second_per_grid_ts"] = torch.tensor([seconds for _, seconds in prompt.videos])
    return inputs


def positions_of(
    model: VisionModel, prompt: Prompt, ids: torch.Tensor, inputs: dict[str, torch.Tensor], types: torch.Tensor
) -> torch.Tensor:
    """Positions on three axes, [3, 1, tokens]."""
    names = inputs.keys() & {"image_grid_thw", "video_grid_thw", "second_per_grid_ts"}
    found, _ = model.reference.model.get_rope_index(ids, types, **{name: inputs[name] for name in names})
    return behind_videos(found[:, 0], prompt.spans, model.spec.merge_size)[:, None]


@torch.no_grad()
def logits_of(model: VisionModel, prompt: Prompt) -> torch.Tensor:
    """transformers' logits of a prompt's tokens, [tokens, vocabulary]. No videos."""
    ids, inputs = torch.tensor([prompt.tokens]), inputs_of(model.spec, prompt)
    more = {"mm_token_type_ids": ids.eq(IMAGE).int()} if "image_grid_thw" in inputs else {}
    return torch.as_tensor(model.reference(ids, **inputs, **more).logits[0])


@torch.no_grad()
def greedy(model: VisionModel, prompt: Prompt, count: int) -> tuple[list[int], list[float]]:
    """transformers' greedy continuation, and the log-probability of each token."""
    inputs = inputs_of(model.spec, prompt)
    tokens, logprobs = list(prompt.tokens), []
    for _ in range(count):
        ids = torch.tensor([tokens])
        seen = {"image_grid_thw", "video_grid_thw"} & inputs.keys()
        more = {"mm_token_type_ids": ids.eq(IMAGE).int() + 2 * ids.eq(VIDEO).int()} if seen else {}
        if "video_grid_thw" in seen:
            more["position_ids"] = positions_of(model, prompt, ids, inputs, more["mm_token_type_ids"])
        last = model.reference(ids, **inputs, **more).logits[0, -1].float().log_softmax(-1)
        tokens.append(int(last.argmax()))
        logprobs.append(float(last.max()))
    return tokens[len(prompt.tokens) :], logprobs


def core_of(
    model: VisionModel, runner: TorchRunner | None = None, cache_tokens: int = 1 << 12, **fields: Any
) -> EngineCore:
    """An engine; ``cache_tokens``: image tokens that the encoder cache holds. Of several ranks these are threads."""
    spec = model.spec
    token_bytes = spec.embedding_elements * DTYPE_BYTES["float32"]
    config: EngineConfig = engine_config(model.folder, encoder_cache_bytes=cache_tokens * token_bytes, **fields)
    if runner is None and config.num_ranks > 1:
        runner = cast(TorchRunner, ThreadRanks(config))
    runner = runner or build_runner(config, model.config)
    info = EngineInfo(
        model="tiny",
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype="float32",
        vocab_size=runner.model_config.vocab_size,
    )
    limits = EncoderLimits(spec=spec, cache_bytes=config.encoder_cache_bytes, element_bytes=4)
    draft_positions = 0 if runner.draft is None else runner.draft.max_positions
    return EngineCore.from_config(
        config,
        runner,
        info,
        num_blocks=runner.num_blocks,
        images=limits,
        step_seconds=None if config.speculative is None else free_drafts(),
        draft_positions=draft_positions,
    )


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cached: int | None = None


def run(core: EngineCore, requests: Sequence[GenerateRequest], most_steps: int = 5000) -> dict[str, Answer]:
    """Add all requests and step until they have ended."""
    for request in requests:
        core.add(request)
    answers = {request_id: Answer() for request in requests for request_id in request.all_request_ids}
    for _ in range(most_steps):
        if not core.has_work:
            return answers
        for output in core.step():
            assert output.error is None, output.error
            answer = answers[output.request_id]
            answer.tokens += output.token_ids
            answer.logprobs += [each.chosen for each in output.logprobs or ()]
            answer.cached = output.cached_tokens if answer.cached is None else answer.cached
    raise AssertionError("it does not end")


def grids_of(model: VisionModel) -> tuple[Grid, Grid]:
    """Of a small image, and of a larger one."""
    return ((1, 4, 4), (3, 4, 4)) if model.spec.family == "internvl" else ((1, 6, 4), (1, 4, 10))


def several_images(model: VisionModel) -> Prompt:
    one, two = grids_of(model)
    prompt = Prompt().text(21, 4).image(model.spec, two, 5).text(3, 6).image(model.spec, one, 2)
    return prompt.text(1, 11).image(model.spec, one, 7).text(12, 8)


def prompts_of(model: VisionModel) -> list[Prompt]:
    """One with text alone, one that begins with an image, one with several, one that ends with one."""
    one, two = grids_of(model)
    return [
        Prompt().text(40, 1),
        Prompt().image(model.spec, one, 2).text(9, 3),
        several_images(model),
        Prompt().text(17, 9).image(model.spec, two, 10),
    ]


def check_answers(answers: dict[str, Answer], expected: list[tuple[list[int], list[float]]]) -> None:
    for index, (tokens, logprobs) in enumerate(expected):
        answer = answers[str(index)]
        assert answer.tokens == tokens, index
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-4)
