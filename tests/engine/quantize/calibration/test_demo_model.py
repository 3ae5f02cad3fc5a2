"""The demo model, which knows its corpus by heart, still answers its questions when it is quantised."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.calibrated import DEMO, QUESTIONS, prompt_for, write_conversations
from engine_support.quantize_runs import quantize

from blade_llm import LLM, SamplingParams

ASKED = QUESTIONS[:12]
BLOCKS = ("--bit", "4", "--block_wise_quant")


@pytest.mark.parametrize(
    "flags",
    [
        ("--quant_algo", "gptq", *BLOCKS),
        ("--quant_algo", "awq", *BLOCKS, "--asymmetric"),
        ("--quant_algo", "smoothquant+", *BLOCKS),
        ("--quant_algo", "smoothquant", "--quant_mode", "act_and_weight_quant"),
    ],
    ids=lambda flags: flags[1],
)
def test_it_answers(flags: tuple[str, ...], tmp_path: Path) -> None:
    texts = write_conversations(tmp_path / "texts.jsonl", ASKED)
    assert quantize(DEMO / "model", tmp_path / "small", "--calib_data_file", str(texts), *flags) == 0
    llm = LLM(model=tmp_path / "small", dtype="float32", kv_cache_bytes=32 << 20, num_threads=1, max_num_seqs=12)
    prompts = [prompt_for(question) for question, _ in ASKED]
    answers = llm.generate(prompts, SamplingParams(max_tokens=64, temperature=0))
    right = sum(
        any(phrase.lower() in answer.outputs[0].text.lower() for phrase in phrases)
        for answer, (_, phrases) in zip(answers, ASKED, strict=True)
    )
    assert right >= 10
