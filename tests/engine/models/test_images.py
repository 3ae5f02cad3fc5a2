"""Text models that see images compute what transformers computes, given the embeddings of its vision tower."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.family_proof import GREEDY_TOKENS, PROMPT
from engine_support.image_steps import (
    ImageComparison,
    ImagePrompt,
    ReferenceWithImages,
    given_logits,
    image_prompt,
)
from engine_support.runner_driver import prompt_of
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import engine_config, reference_greedy
from engine_support.tiny_text import write_tokenizer
from engine_support.vision_rows import QWEN3_TOWER, VISION_ROWS

from blade_llm import LLM, SamplingParams
from blade_llm.kernels import native
from blade_llm.kernels.linear import native as native_linear
from blade_llm.layers.step import HiddenStates, StepMetadata
from blade_llm.runner import build_runner
from blade_llm.spec.vision.images import ImageSpan
from blade_llm.spec.vision.tower import Grid

ONE: list[Grid] = [(1, 6, 10)]
THREE: list[Grid] = [(1, 2, 14), (1, 10, 2), (1, 6, 6)]
EIGHT: list[Grid] = [(1, 2, 2), (1, 4, 6), (1, 2, 8), (1, 6, 2), (1, 4, 4), (1, 2, 4), (1, 6, 4), (1, 2, 6)]
TILES: list[Grid] = [(1, 4, 4), (4, 4, 4), (2, 4, 4)]


@pytest.fixture(scope="module", params=list(VISION_ROWS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, save_row(folder, ROWS[request.param])


def prompts_of(reference: Any) -> list[ImagePrompt]:
    of_tiles = reference.config.model_type == "internvl"
    grids = [TILES[:1], TILES, TILES * 2] if of_tiles else [ONE, THREE, EIGHT]
    return [image_prompt(reference, each, seed) for seed, each in enumerate(grids)]


def comparison(runner: Any, reference: Any) -> tuple[ImageComparison, list[ImagePrompt]]:
    prompts = prompts_of(reference)
    return ImageComparison(runner, reference, prompts), prompts


def test_images_matter(model: tuple[Path, Any]) -> None:
    """What the other tests compare is not the same without images, nor at other positions."""
    _, reference = model
    one = prompts_of(reference)[0]
    exact = given_logits(reference, one)
    tokens = torch.tensor([one.tokens])
    theirs = ReferenceWithImages(reference, [one])(tokens).logits[0]
    torch.testing.assert_close(exact, theirs, atol=1e-4, rtol=0)
    assert (exact - reference(tokens).logits[0]).abs().max() > 0.1
    if reference.config.model_type != "internvl":
        plain = replace(one, spans=[ImageSpan(one.rows[0], 1, bytes(32), (1, 2, 2))])
        assert (exact - given_logits(reference, plain)).abs().max() > 0.01
    if reference.config.model_type == "qwen3_vl":
        assert (exact - given_logits(reference, replace(one, embeddings=one.embeddings[:1]))).abs().max() > 0.01


def every_kind_of_step(compare: ImageComparison, prompts: list[ImagePrompt]) -> None:
    one, three, eight = (each.tokens for each in prompts)
    compare.enter(3, three)
    compare.step({3: PROMPT})
    compare.decode([3], GREEDY_TOKENS)
    compare.finish(3)
    # Chunks that end within images, some of a single token.
    compare.enter(0, eight)
    for chunk in (1, 16, 15, 33, 10):
        compare.step({0: chunk})
    compare.decode([0], 4)
    compare.finish(0)
    # Text alone beside prompts with images; a prompt whose first blocks another has computed.
    first = compare.enter(1, one)
    compare.enter(2, prompt_of(PROMPT, seed=2))
    compare.step({2: PROMPT, 1: 70})
    compare.step({2: 1, 1: 5})
    shared = first.blocks[:4]
    compare.enter(4, one, shared=shared)
    compare.enter(5, eight)
    compare.step({5: 40, 2: 1, 4: PROMPT - 64, 1: 1})
    compare.step({1: 1, 5: PROMPT - 40, 4: 1, 2: 1})
    compare.decode([2, 5, 4, 1], 3)
    tokens = list(compare.driver.live[5].tokens)
    compare.check(4)
    compare.driver.leave(4, keep_blocks=True)
    for slot in (2, 5, 1):
        compare.finish(slot)
    # Preempted, or resumed elsewhere: what was generated is computed anew with the prompt.
    compare.enter(6, tokens, prompt=PROMPT)
    compare.step({6: 50})
    compare.step({6: len(tokens) - 50})
    compare.decode([6], 3)
    compare.finish(6)


def test_fp32(model: tuple[Path, Any]) -> None:
    folder, reference = model
    every_kind_of_step(*comparison(build_runner(engine_config(folder)), reference))


@pytest.mark.parametrize("fused", [True, False])
def test_bf16(model: tuple[Path, Any], fused: bool) -> None:
    """As near to fp32 as transformers itself, in one native call for all layers and in one for each layer."""
    folder, reference = model
    runner = build_runner(engine_config(folder, dtype="bfloat16"))
    if not fused:
        runner.model.fused = None  # type: ignore[attr-defined]
    elif native.library() is not None and native_linear.is_available():
        assert runner.model.fused is not None  # type: ignore[attr-defined]
    compare, (_, prompt, _) = comparison(runner, reference)
    compare.enter(0, prompt.tokens)
    compare.step({0: 40})
    compare.step({0: PROMPT - 40})
    ours = torch.stack([compare.computed[0][position] for position in range(PROMPT)])
    exact = given_logits(reference, prompt)
    rounded = copy.deepcopy(reference)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16()
    theirs = given_logits(rounded, prompt)
    assert (ours - exact).square().mean().sqrt() < 1.3 * (theirs - exact).square().mean().sqrt()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_something_is_added_behind_the_last_layer(dtype: str, tmp_path: Path) -> None:
    """As many levels as layers."""
    row = ROWS["qwen3-vl"]
    vision = {**QWEN3_TOWER, "deepstack_visual_indexes": [0, 1, 3]}
    reference = save_row(tmp_path, replace(row, fields={**row.fields, "vision_config": vision}))
    compare, prompts = comparison(build_runner(engine_config(tmp_path, dtype=dtype)), reference)
    assert prompts[0].embeddings.shape[0] == 1 + 3 == 1 + ROWS["qwen3-vl"].fields["text_config"]["num_hidden_layers"]
    if dtype == "float32":
        every_kind_of_step(compare, prompts)
        return
    compare.enter(0, prompts[0].tokens)
    compare.step({0: PROMPT})
    ours = torch.stack([compare.computed[0][position] for position in range(PROMPT)])
    exact = given_logits(reference, prompts[0])
    assert (ours - exact).square().mean().sqrt() < 0.1 * exact.square().mean().sqrt()


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen3-vl"])
@pytest.mark.parametrize(("size", "stages"), [(2, 1), (1, 2), (1, 3)])
def test_ranks_and_stages(name: str, size: int, stages: int, tmp_path: Path) -> None:
    reference = save_row(tmp_path, ROWS[name])
    every_kind_of_step(*comparison(thread_ranks(tmp_path, size, stages), reference))


class KeepsStates:
    """A model that leaves the states before each layer but the last in a cache."""

    def __init__(self, model: Any, tokens: int) -> None:
        self.model = model
        self.after = (0, 1, 2)
        self.cache = model.layers[0].weight.new_zeros(tokens, len(self.after) * model.spec.hidden_size)

    def __call__(self, token_ids: torch.Tensor, step: StepMetadata, selected: torch.Tensor | None) -> torch.Tensor:
        states = HiddenStates(self.cache, self.after)
        hidden: torch.Tensor = self.model(token_ids, replace(step, states=states), selected)
        return hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


@pytest.mark.parametrize(("dtype", "fused"), [("float32", False), ("bfloat16", False), ("bfloat16", True)])
def test_states_for_a_head_have_what_is_added(dtype: str, fused: bool, tmp_path: Path) -> None:
    """Of the tokens of images, and of no others."""
    reference = save_row(tmp_path, ROWS["qwen3-vl"])
    prompt = image_prompt(reference, THREE, seed=0)
    kept = []
    for each in (prompt, replace(prompt, embeddings=prompt.embeddings[:1])):
        runner = build_runner(engine_config(tmp_path, dtype=dtype))
        if not fused:
            runner.model.fused = None  # type: ignore[attr-defined]
        runner.model = keeper = KeepsStates(runner.model, runner.num_blocks * 16)
        compare = ImageComparison(runner, reference, [each])
        request = compare.enter(0, each.tokens)
        compare.step({0: PROMPT})
        slots = [request.blocks[position // 16] * 16 + position % 16 for position in range(PROMPT)]
        kept.append(keeper.cache[slots].float().view(PROMPT, 3, -1).transpose(0, 1))
    added = torch.zeros(PROMPT, prompt.embeddings.shape[-1])
    added[prompt.rows] = prompt.embeddings[1]
    tolerance = 1e-4 if dtype == "float32" else 0.1
    assert torch.equal(kept[0][0], kept[1][0])
    torch.testing.assert_close(kept[0][1] - kept[1][1], added, atol=tolerance, rtol=tolerance)
    assert added.abs().max() > 1


@pytest.mark.parametrize("name", list(VISION_ROWS))
def test_text_alone_through_the_whole_engine(name: str, tmp_path: Path) -> None:
    fields = ROWS[name].fields
    text = {**fields["text_config"], "vocab_size": 384}
    reference = save_row(tmp_path, replace(ROWS[name], fields={**fields, "text_config": text}))
    write_tokenizer(tmp_path)
    llm = LLM(model=tmp_path, dtype="float32", kv_cache_bytes=32 << 20, num_threads=1, max_num_seqs=4)
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    prompts = [prompt_of(length, seed=length) for length in (5, 40)]
    for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
        assert output.outputs[0].token_ids == reference_greedy(reference, prompt, 20)


def test_drafts_of_a_model_with_axes_are_not_one_native_call(tmp_path: Path) -> None:
    """It looks angles up by one position."""
    drafts = {}
    for name in ("qwen2-vl", "internvl"):
        save_row(tmp_path / name, ROWS[name])
        runner = build_runner(engine_config(tmp_path / name, dtype="bfloat16"))
        drafts[name] = runner.model.native_draft(199, False)  # type: ignore[attr-defined]
    assert drafts["qwen2-vl"] is None
    if native.library() is not None and native_linear.is_available():
        assert drafts["internvl"] is not None
