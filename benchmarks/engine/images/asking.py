"""Requests with pictures: through our engine, and through transformers."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.images.model import IMAGE, patches_of, prompt_of
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.output import RequestOutput
from blade_llm.spec.vision.images import ImagePixels, ImageSpan

_numbers = itertools.count()


def words(count: int, seed: int) -> list[int]:
    """Random text."""
    dice = random.Random(seed)
    return [dice.randrange(256, 100_000) for _ in range(count)]


BEFORE, QUESTION = words(16, 1), words(24, 2)


def add(
    core: EngineCore, tokens: list[int], max_tokens: int, pictures: Sequence[tuple[ImagePixels, ImageSpan]] = ()
) -> str:
    """Begin a request; returns its id."""
    name = str(next(_numbers))
    core.add(
        GenerateRequest(
            request_id=name,
            prompt_token_ids=tokens,
            sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=0),
            images=[span for _, span in pictures],
            pixels=[pixels for pixels, _ in pictures],
        )
    )
    return name


def step(core: EngineCore) -> list[RequestOutput]:
    """One step of the engine.

    Raises:
        RuntimeError: a request failed.
    """
    outputs = core.step()
    for output in outputs:
        if output.error is not None:
            raise RuntimeError(output.error.message)
    return outputs


def ours(core: EngineCore, images: Sequence[ImagePixels]) -> float:
    """Seconds until each of several requests, one picture each, has its first token."""
    begin = time.perf_counter()
    for image in images:
        tokens, span = prompt_of(image, BEFORE, QUESTION)
        add(core, tokens, 1, [(image, span)])
    while core.has_work:
        step(core)
    return time.perf_counter() - begin


@torch.inference_mode()
def peers(model: Any, images: Sequence[ImagePixels]) -> float:
    """The same of transformers, which gets them as one batch. Its pixels are normalised and cut into patches before."""
    ids = torch.tensor([prompt_of(image, BEFORE, QUESTION)[0] for image in images])
    pixels = torch.cat([patches_of(image) for image in images])
    grids = torch.tensor([image.grid for image in images])
    begin = time.perf_counter()
    logits = model(
        ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=pixels,
        image_grid_thw=grids,
        mm_token_type_ids=ids.eq(IMAGE).int(),
        use_cache=True,
        logits_to_keep=1,
    ).logits
    logits[:, -1].argmax(-1).tolist()
    return time.perf_counter() - begin


@torch.inference_mode()
def difference(core: EngineCore, model: Any, image: ImagePixels) -> float:
    """Mean difference between our embeddings of a picture and transformers', relative to their mean size."""
    runner: Any = core._runner
    assert isinstance(runner, TorchRunner)
    assert runner.images is not None
    tower = runner.images.encoder.tower
    state = tower.begin([image])
    while state.remaining:
        tower.advance(state, state.remaining)
    mine: Tensor = tower.embeddings(state)[0][0].float()
    theirs = model.model.visual(patches_of(image).bfloat16(), grid_thw=torch.tensor([image.grid])).pooler_output
    return float((mine - theirs.float()).abs().mean() / theirs.float().abs().mean())
