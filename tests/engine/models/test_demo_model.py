"""The engine computes for the demo model what transformers computes: logits within 1e-4, the same greedy tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config, load_reference, reference_greedy, reference_logits

from blade_llm.runner import build_runner
from blade_llm.text.chat_template import load_chat_template
from blade_llm.text.tokenizer import Tokenizer

DEMO = Path(__file__).parents[3] / "examples" / "demo_model"
OUTPUT_TOKENS = 24


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    questions = [entry["question"] for entry in json.loads((DEMO / "questions.json").read_text(encoding="utf-8"))]
    tokenizer = Tokenizer(DEMO / "model")
    template = load_chat_template(tokenizer)
    assert template is not None
    return [tokenizer.encode(template.render([{"role": "user", "content": text}])) for text in questions]


@pytest.mark.parametrize("folder", ["model", "draft"])
def test_logits_and_greedy_tokens(folder: str, prompts: list[list[int]]) -> None:
    reference: Any = load_reference(DEMO / folder)
    driver = Driver(build_runner(engine_config(DEMO / folder, max_num_seqs=len(prompts))))
    requests = [driver.enter(slot, prompt) for slot, prompt in enumerate(prompts)]
    driver.step({slot: len(prompt) for slot, prompt in enumerate(prompts)})
    for slot, prompt in enumerate(prompts):
        expected = reference_logits(reference, prompt)[-1]
        torch.testing.assert_close(driver.logits[slot], expected, atol=1e-4, rtol=1e-4)
    driver.decode(list(driver.live), OUTPUT_TOKENS - 1)
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.tokens[len(prompt) :] == reference_greedy(reference, prompt, OUTPUT_TOKENS)
