"""All draft tokens of a step in one native call: the tokens that the steps bring one by one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.feature_load import core_for, free_drafts, run
from engine_support.heads import save_eagle3, save_with_mtp
from engine_support.tiny_models import engine_config, save_model
from torch import Tensor

from blade_llm.config import SpeculativeConfig
from blade_llm.engine.messages import GenerateRequest
from blade_llm.kernels.backend import backend_of
from blade_llm.runner.draft import DraftRunner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.masks import DraftMasks
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import StepPlan

pytestmark = pytest.mark.skipif(backend_of(torch.empty(0)) != "native", reason="the native operators are off")


class Compared:
    """Drafts every step's tokens both ways."""

    def __init__(self, draft: DraftRunner) -> None:
        self._draft, self._launch, self._native = draft, draft.launch, draft._native
        assert self._native is not None
        self.tokens = self.different = self.by_native = 0

    def __call__(self, plan: StepPlan, masks: DraftMasks | None = None) -> Tensor:
        assert masks is None, "no request has a grammar"
        native, calls = self._native, 0

        def counted(*arguments: Any) -> int:
            nonlocal calls
            calls += 1
            assert native is not None
            return native(*arguments)

        table = self._draft._tables.token_ids
        self._draft._native = None
        expected_invalid = self._launch(plan)
        expected = table.clone()
        for chunk in plan.chunks:  # or they would be found there
            if chunk.num_draft_tokens:
                end = chunk.start + chunk.count
                table[chunk.slot, end - chunk.num_draft_tokens : end] = 0
        self._draft._native = counted  # type: ignore[assignment]
        invalid = self._launch(plan)
        assert bool(invalid) == bool(expected_invalid)
        self.different += int((table != expected).sum())
        self.tokens += sum(chunk.num_draft_tokens for chunk in plan.chunks)
        self.by_native += calls
        return invalid


def requests(count: int, **fields: Any) -> list[GenerateRequest]:
    choose = random.Random(7)
    made = []
    for number in range(count):
        sampling = {
            "temperature": choose.choice([0.0, 0.7, 1.0]),
            "top_p": choose.choice([1.0, 0.8]),
            "top_k": choose.choice([0, 0, 20]),
            "logprobs": choose.choice([None, 2]),
            "max_tokens": choose.randrange(3, 50),
            "seed": number,
            "ignore_eos": True,
        }
        prompt = [choose.randrange(3, 199) for _ in range(choose.randrange(1, 90))]
        made.append(
            GenerateRequest(
                request_id=f"r{number}", prompt_token_ids=prompt, sampling=SamplingParams(**{**sampling, **fields})
            )
        )
    return made


def compared(
    folder: Path, draft: Path | None, load: list[GenerateRequest], method: str = "draft", **options: Any
) -> Compared:
    speculative = SpeculativeConfig(
        method=method,  # type: ignore[arg-type]
        draft_model=str(draft or ""),
        gamma=4,
    )
    core = core_for(
        engine_config(folder, dtype="bfloat16", max_model_len=256, speculative=speculative, **options),
        step_seconds=free_drafts(),
    )
    runner = core._runner
    assert isinstance(runner, TorchRunner)
    assert runner.draft is not None
    both = Compared(runner.draft)
    runner.draft.launch = both  # type: ignore[method-assign]
    run(core, load, stagger=2)
    return both


@pytest.mark.parametrize(("family", "overrides"), [("qwen2", {}), ("llama", {"vocab_size": 199, "head_dim": 16})])
def test_the_tokens_are_those_of_steps_one_by_one(family: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    target, draft = tmp_path / "target", tmp_path / "draft"
    save_model(target, "qwen2", torch.bfloat16)
    save_model(draft, family, torch.bfloat16, num_hidden_layers=2, **overrides)
    both = compared(target, draft, requests(24), max_num_seqs=12)
    assert both.by_native > 20
    assert both.tokens > 1000
    assert both.different == 0


@pytest.mark.parametrize("row", ["mimo", "qwen3", "qwen3-moe"])
def test_layers_for_multi_token_prediction_draft_the_tokens_of_steps_one_by_one(row: str, tmp_path: Path) -> None:
    save_with_mtp(tmp_path, row)
    both = compared(tmp_path, None, requests(24), "mtp", max_num_seqs=12)
    assert both.by_native > 20
    assert both.tokens > 1000
    assert both.different == 0


@pytest.mark.parametrize(
    "head",
    [{"vocab_size": 60}, {"vocab_size": 199, "norm_before_residual": True}],
    ids=["own vocabulary", "all tokens"],
)
def test_eagle3_drafts_the_tokens_of_steps_one_by_one(head: dict[str, Any], tmp_path: Path) -> None:
    target, folder = tmp_path / "target", tmp_path / "head"
    save_model(target, "llama", torch.bfloat16, num_hidden_layers=5)
    save_eagle3(folder, **head)
    both = compared(target, folder, requests(24), "eagle3", max_num_seqs=12)
    assert both.by_native > 20
    assert both.tokens > 1000
    assert both.different == 0


def test_requests_that_need_more_are_drafted_one_by_one(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", torch.bfloat16)
    for fields in ({"repetition_penalty": 1.2}, {"logit_bias": {5: 1.0}}, {"min_p": 0.1, "temperature": 1.0}):
        both = compared(tmp_path, tmp_path, requests(3, **fields))
        assert both.by_native == 0
        assert both.tokens > 0


def test_logits_that_are_no_numbers_are_reported(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    target, draft = tmp_path / "target", tmp_path / "draft"
    for folder in (target, draft):
        save_model(folder, "qwen2", torch.bfloat16)
    weights = load_file(draft / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 3e38)
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    assert compared(target, draft, requests(2)).by_native == 1, "the first report switches drafts off"
