"""The demo model, which knows its corpus by heart, still answers its questions when it is quantised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_support.quantize_runs import quantize

from blade_llm import LLM, SamplingParams

DEMO = Path(__file__).resolve().parents[4] / "examples/demo_model"
QUESTIONS = [
    (entry["question"], entry["phrases"])
    for entry in json.loads((DEMO / "questions.json").read_text(encoding="utf-8"))[:12]
]
BLOCKS = ("--bit", "4", "--block_wise_quant")


def conversation(question: str, answer: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


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
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": conversation(question, phrases[0])}) for question, phrases in QUESTIONS]
    texts.write_text("\n".join(lines), encoding="utf-8")
    assert quantize(DEMO / "model", tmp_path / "small", "--calib_data_file", str(texts), *flags) == 0
    llm = LLM(model=tmp_path / "small", dtype="float32", kv_cache_bytes=32 << 20, num_threads=1, max_num_seqs=12)
    prompts = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question, _ in QUESTIONS]
    answers = llm.generate(prompts, SamplingParams(max_tokens=64, temperature=0))
    right = sum(
        any(phrase.lower() in answer.outputs[0].text.lower() for phrase in phrases)
        for answer, (_, phrases) in zip(answers, QUESTIONS, strict=True)
    )
    assert right >= 10
