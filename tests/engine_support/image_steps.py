"""Feeds a model's steps with the embeddings of images, as transformers' own vision tower makes them, and compares what
it computes with transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from engine_support.family_proof import PROMPT, Comparison
from engine_support.vision_rows import QWEN_TOKENS

from blade_llm.layers.step import StepMetadata
from blade_llm.models.vision.axis_positions import axis_positions
from blade_llm.spec.vision.images import ImageSpan
from blade_llm.spec.vision.tower import Grid

IMAGE = QWEN_TOKENS["image_token_id"]
BEGIN, END = QWEN_TOKENS["vision_start_token_id"], QWEN_TOKENS["vision_end_token_id"]
MERGE = 2


@dataclass(frozen=True)
class ImagePrompt:
    """A prompt of :data:`~engine_support.family_proof.PROMPT` tokens with images."""

    tokens: list[int]
    spans: list[ImageSpan]
    inputs: dict[str, torch.Tensor]
    """Of transformers' model: pixels, and grids where it has any."""
    embeddings: torch.Tensor
    """[1 + levels, n, hidden]."""

    @property
    def rows(self) -> list[int]:
        """The positions of the image tokens."""
        return [position for position, token in enumerate(self.tokens) if token == IMAGE]

    def axes(self, start: int, count: int) -> np.ndarray[Any, Any]:
        """[3, count]: of positions from ``start`` on, beyond the prompt, too."""
        prompt, delta = axis_positions(len(self.tokens), self.spans, MERGE)
        after = np.tile(np.arange(len(self.tokens), start + count) + delta, (3, 1))
        return np.concatenate([prompt, after], axis=1)[:, start : start + count]


@torch.no_grad()
def image_prompt(reference: Any, grids: list[Grid], seed: int) -> ImagePrompt:
    """Random text with random images of ``grids`` (of InternVL: tiles of 4 x 4 patches) at random places."""
    random = torch.Generator().manual_seed(seed)
    vision = reference.config.vision_config
    counts = [frames * rows * columns // MERGE**2 for frames, rows, columns in grids]
    free = PROMPT - sum(counts) - 2 * len(grids)
    cuts = sorted(torch.randint(1, free, (len(grids),), generator=random).tolist())
    tokens, spans = [], []
    for grid, count, size in zip(grids, counts, np.diff([0, *cuts]), strict=True):
        tokens += [*torch.randint(2, IMAGE, (int(size),), generator=random).tolist(), BEGIN]
        spans.append(ImageSpan(len(tokens), count, bytes(32), grid))
        tokens += [*[IMAGE] * count, END]
    tokens += torch.randint(2, IMAGE, (PROMPT - len(tokens),), generator=random).tolist()
    if reference.config.model_type == "internvl":
        tiles = torch.randn(sum(grid[0] for grid in grids), 3, *vision.image_size, generator=random)
        found = reference.model.get_image_features(tiles, return_dict=True).pooler_output
        return ImagePrompt(tokens, spans, {"pixel_values": tiles}, torch.cat(list(found)).reshape(1, sum(counts), -1))
    elements = 3 * vision.temporal_patch_size * vision.patch_size**2
    patches = torch.randn(MERGE**2 * sum(counts), elements, generator=random)
    inputs = {"pixel_values": patches, "image_grid_thw": torch.tensor(grids)}
    features = reference.model.get_image_features(*inputs.values(), return_dict=True)
    levels = [torch.cat(list(each)) for each in getattr(features, "deepstack_features", None) or ()]
    embeddings = torch.cat(list(features.pooler_output))
    return ImagePrompt(tokens, spans, inputs, torch.stack([embeddings, *levels]))


@torch.no_grad()
def given_logits(reference: Any, prompt: ImagePrompt) -> torch.Tensor:
    """transformers' logits of a prompt, [tokens, vocabulary], of the same embeddings as ours."""
    text, dtype, rows = reference.model.language_model, reference.dtype, prompt.rows
    embedded = text.get_input_embeddings()(torch.tensor([prompt.tokens]))
    of_images = prompt.embeddings.to(dtype)
    embedded[0, rows] = of_images[0]
    more: dict[str, Any] = {}
    if len(of_images) > 1:
        mask = torch.tensor([prompt.tokens]).eq(IMAGE)
        more = {"visual_pos_masks": mask, "deepstack_visual_embeds": list(of_images[1:])}
    if "image_grid_thw" in prompt.inputs:
        more["position_ids"] = torch.from_numpy(prompt.axes(0, len(prompt.tokens)))[:, None].long()
    logits: torch.Tensor = reference.lm_head(text(inputs_embeds=embedded, **more).last_hidden_state)
    return logits[0].float()


class ReferenceWithImages:
    """transformers' model, which gets the images of a prompt that is one of ``prompts``."""

    def __init__(self, model: Any, prompts: list[ImagePrompt]) -> None:
        self._model, self._prompts = model, prompts

    def __call__(self, token_ids: torch.Tensor) -> Any:
        prompt = prompt_of(token_ids[0].tolist(), self._prompts)
        if prompt is None:
            return self._model(token_ids)
        inputs = dict(prompt.inputs)
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = token_ids.eq(IMAGE).int()
        return self._model(token_ids, **inputs)


def prompt_of(tokens: list[int], prompts: list[ImagePrompt]) -> ImagePrompt | None:
    """That which ``tokens`` begin with."""
    return next((each for each in prompts if tokens[: len(each.tokens)] == each.tokens), None)


@dataclass
class Extra:
    """What the next step has of images."""

    rows: torch.Tensor | None = None
    embeddings: torch.Tensor | None = None
    axes: torch.Tensor | None = None


class WithImages:
    """A model whose steps get what a test has put into ``extra``."""

    def __init__(self, model: Any, extra: Extra, first_layer: int = 0) -> None:
        self.model, self._extra, self._first = model, extra, first_layer

    def __call__(self, token_ids: torch.Tensor, step: StepMetadata, selected: torch.Tensor | None) -> torch.Tensor:
        extra = self._extra
        embeddings = extra.embeddings
        if self._first and embeddings is not None:
            embeddings = embeddings[self._first :] if len(embeddings) > self._first else None
        if embeddings is not None:
            embeddings = embeddings.to(self.model.layers[0].weight.dtype)
        step = replace(step, image_rows=extra.rows, image_embeddings=embeddings, axis_positions=extra.axes)
        hidden: torch.Tensor = self.model(token_ids, step, selected)
        return hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class ImageComparison(Comparison):
    """A :class:`~engine_support.family_proof.Comparison` of requests some of which begin with one of ``prompts``."""

    def __init__(self, runner: Any, reference: Any, prompts: list[ImagePrompt]) -> None:
        self.extra, self._prompts = Extra(), prompts
        self._has_axes = reference.config.model_type != "internvl"
        for each in getattr(runner, "runners", [runner]):
            stage = each.model_config.stage
            each.model = WithImages(each.model, self.extra, 0 if stage is None else stage.layers.start)
        super().__init__(runner, ReferenceWithImages(reference, prompts))

    def step(self, counts: dict[int, int]) -> None:
        rows: list[int] = []
        embeddings, axes, before = [], [], 0
        for slot, count in counts.items():
            request = self.driver.live[slot]
            start, prompt = request.computed, prompt_of(request.tokens, self._prompts)
            own = np.tile(np.arange(start, start + count), (3, 1)) if prompt is None else prompt.axes(start, count)
            axes.append(torch.from_numpy(own))
            if prompt is not None:
                here = [index for index, row in enumerate(prompt.rows) if start <= row < start + count]
                rows += [before + prompt.rows[index] - start for index in here]
                embeddings.append(prompt.embeddings[:, here])
            before += count
        self.extra.rows = torch.tensor(rows) if rows else None
        self.extra.embeddings = torch.cat(embeddings, dim=1) if rows else None
        self.extra.axes = torch.cat(axes, dim=1).long() if self._has_axes else None
        super().step(counts)
