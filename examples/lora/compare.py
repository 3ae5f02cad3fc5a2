"""Serve the adapter beside the demo model and compare with the merged model: `python -m examples.lora.compare`.

One engine serves the base and the adapter, another one the model that PEFT merged. Every listed question is answered by
the adapter and by the merged model with the same tokens, and transformers computes the same log-probabilities for them.
Prints a `figure` line per measure and exits with 1 when a target is missed.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from benchmarks.figures import Figure, report
from benchmarks.fleet import Program, engine
from examples.demo_model.measure import contains_phrase, listed_questions, prompt_ids
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from . import merge
from .data import OPENING
from .train import BASE, HERE

NAME = "polite"
TOKENS = 64
"""Of each answer, the end of the text ignored."""


@dataclass(frozen=True)
class Answer:
    """Greedy tokens of an engine, with their log-probabilities."""

    tokens: list[int]
    logprobs: list[float]


def answer(program: Program, prompt: list[int], model: str | None = None) -> Answer:
    """What an engine generates after ``prompt``."""
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    body |= {"return_tokens_as_token_ids": True} | ({"model": model} if model else {})
    response = httpx.post(f"{program.url}/v1/completions", json=body, timeout=60)
    response.raise_for_status()
    found = response.json()["choices"][0]["logprobs"]
    return Answer([int(token.removeprefix("token_id:")) for token in found["tokens"]], found["token_logprobs"])


@torch.no_grad()
def reference(model: Any, prompt: list[int], tokens: list[int]) -> Answer:
    """The tokens that transformers' model would choose, each after those of ``tokens`` before it."""
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return Answer(logits.argmax(-1).tolist(), logprobs.tolist())


def compare(base: Path, adapter: Path, work: Path, show: bool = False, count: int | None = None) -> list[Figure]:
    """All figures, of the first ``count`` questions."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = merge.merged(base, adapter)
    merge.save(model, base, work / "merged")
    options = ("--dtype", "float32", "--kv_cache_bytes", "64MiB")
    programs = [
        engine(work, *options, "--enable_lora", "--lora_modules", f"{NAME}={adapter}", model=base, name="dynamic"),
        engine(work, *options, model=work / "merged", name="merged"),
    ]
    try:
        for program in programs:
            program.wait_healthy()
        return _figures(tokenizer, model, programs, show, count)
    finally:
        for program in programs:
            program.kill()


def _figures(tokenizer: Any, model: Any, programs: list[Program], show: bool, count: int | None) -> list[Figure]:
    dynamic, merged = programs
    questions = listed_questions()[:count]
    equal, difference, changed, polite, right = 0, 0.0, 0, 0, 0
    for question in questions:
        prompt = prompt_ids(tokenizer, question.question)
        ours, base = answer(dynamic, prompt, NAME), answer(dynamic, prompt)
        alone, computed = answer(merged, prompt), reference(model, prompt, ours.tokens)
        equal += sum(a == b == c for a, b, c in zip(ours.tokens, alone.tokens, computed.tokens, strict=True))
        pairs = zip(ours.logprobs, computed.logprobs, strict=True)
        difference = max(difference, *(abs(one - other) for one, other in pairs))
        changed += ours.tokens != base.tokens
        text = tokenizer.decode(ours.tokens).partition(tokenizer.eos_token)[0]
        polite += text.startswith(OPENING)
        right += contains_phrase(text, question)
        if show:
            print(f"{question.question}\n    base     {_text(tokenizer, base)}\n    {NAME}   {text}")
    total = len(questions)
    return [
        Figure("lora_tokens_as_merged", equal, f"of_{TOKENS * total}", ">=", TOKENS * total),
        Figure("lora_logprob_difference", difference, "nats", "<=", 1e-4),
        Figure("lora_answers_changed", changed, f"of_{total}", ">=", round(0.8 * total)),
        Figure("lora_answers_polite", polite, f"of_{total}", ">=", round(0.8 * total)),
        Figure("lora_answers_right", right, f"of_{total}", ">=", round(0.7 * total)),
    ]


def _text(tokenizer: Any, found: Answer) -> str:
    return str(tokenizer.decode(found.tokens)).partition(tokenizer.eos_token)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the served adapter with the merged model.")
    parser.add_argument("--base", type=Path, default=BASE)
    parser.add_argument("--adapter", type=Path, default=HERE / "adapter")
    options = parser.parse_args()
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as work:
        return report("lora_example", compare(options.base, options.adapter, Path(work), show=True))


if __name__ == "__main__":
    sys.exit(main())
