"""What guided decoding costs: ``python -m benchmarks.engine.guided``.

Sixteen outputs at once from the model of ``make bench`` (Qwen2.5-0.5B's shape, random weights) with a tokenizer of
151,643 tokens: free ones and such that follow a schema take turns, so that both see the same machine. The schema is a
long list of small objects; an output never completes it, so all have the same length. Its keys are known in advance and
not sampled, so a second comparison has every token sampled.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks.engine.wide_tokenizer import wide_tokenizer
from benchmarks.figures import QUICK, Figure, report
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import CACHE
from benchmarks.peers.shapes import KNOWN_TOKENS, QWEN2
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.grammars import CachingGrammarCompiler
from blade_llm.sampling.guided.vocabulary import load_vocabulary
from blade_llm.sampling.masks import mask_words
from blade_llm.sampling.parameters import SamplingParams

BATCH = 16
TOKENS = 64 if QUICK else 128
ROUNDS = 2 if QUICK else 5
NEW_SCHEMAS = 20


def schema(number: int = 0) -> dict[str, Any]:
    """A new one for each ``number``."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "skills": {"type": "array", "items": {"type": "string", "maxLength": 10}, "minItems": 1},
            f"note {number}": {"type": "string"},
        },
        "required": ["name", "age", "skills"],
    }
    return {"type": "array", "items": person, "minItems": 200}


def main() -> int:
    model = random_model(CACHE / "models" / "qwen2-0.5b")
    folder = wide_tokenizer(CACHE / "models" / "wide-tokenizer")
    vocab_size = QWEN2.config["vocab_size"]
    started = time.perf_counter()
    vocabulary = load_vocabulary(folder, vocab_size, [KNOWN_TOKENS])
    figures = [Figure("vocabulary", time.perf_counter() - started, "s")]
    grammars = CachingGrammarCompiler(lambda: vocabulary, vocab_size)
    figures += _first_uses(grammars)
    figures += _masks(grammars, vocab_size)
    core = build_core(
        EngineConfig(
            model=str(model),
            served_names=("m",),
            max_model_len=2048,
            kv_cache_bytes=512 << 20,
            tokenizer_dir=str(folder),
            enable_json_warmup=True,
        )
    )
    _round(core, "warm-up", None)
    _round(core, "warm-up", GrammarSpec("json", json.dumps(schema())))
    figures += _compare(core, "b16")
    figures += _compare(core, "b16_without_jumps", logprobs=0)
    return report("guided", figures)


def _compare(core: EngineCore, name: str, logprobs: int | None = None) -> list[Figure]:
    """Free and guided outputs in turns. With log-probabilities every token is sampled, none is forced."""
    free, guided = [], []
    spec = GrammarSpec("json", json.dumps(schema()))
    for number in range(ROUNDS):
        free.append(_round(core, f"{name}-free-{number}", None, logprobs))
        guided.append(_round(core, f"{name}-guided-{number}", spec, logprobs))
    ratios = [mine / theirs for mine, theirs in zip(guided, free, strict=True)]
    return [
        Figure(f"free_{name}", statistics.median(free), "tokens/s"),
        Figure(f"guided_{name}", statistics.median(guided), "tokens/s"),
        Figure(f"guided_over_free_{name}", statistics.median(ratios), "times", ">=", 0.95),
    ]


def _first_uses(grammars: CachingGrammarCompiler) -> list[Figure]:
    """Times to compile grammars of schemas that were never used before."""
    grammars.warm_up().result()
    taken = []
    for number in range(1, NEW_SCHEMAS + 1):
        started = time.perf_counter()
        grammars.compile(GrammarSpec("json", json.dumps(schema(number)))).result()
        taken.append(1e3 * (time.perf_counter() - started))
    return [Figure("first_use", statistics.median(taken), "ms"), Figure("first_use_worst", max(taken), "ms", "<=", 50)]


def _masks(grammars: CachingGrammarCompiler, vocab_size: int) -> list[Figure]:
    """One slot's mask, along outputs sampled at random."""
    mask = np.empty(mask_words(vocab_size), np.int32)
    dice = np.random.default_rng(0)
    taken = []
    for _ in range(BATCH):
        grammar = grammars.compile(GrammarSpec("json", json.dumps(schema()))).result()
        for _ in range(TOKENS):
            started = time.perf_counter()
            grammar.fill(mask)
            taken.append(1e6 * (time.perf_counter() - started))
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            grammar.accept([int(dice.choice(allowed))])
    return [Figure("mask", statistics.mean(taken), "us"), Figure("mask_p99", float(np.percentile(taken, 99)), "us")]


def _round(core: EngineCore, name: str, spec: GrammarSpec | None, logprobs: int | None = None) -> float:
    """Tokens a second of all outputs, from the first step to the last."""
    dice = np.random.default_rng(1)
    for number in range(BATCH):
        sampling = SamplingParams(
            temperature=1.0,
            seed=number,
            max_tokens=TOKENS,
            ignore_eos=spec is None,
            grammar_spec=spec,
            logprobs=logprobs,
        )
        prompt = [int(token) for token in dice.integers(256, KNOWN_TOKENS, 32)]
        core.add(GenerateRequest(request_id=f"{name}-{number}", prompt_token_ids=prompt, sampling=sampling))
    tokens, started = 0, time.perf_counter()
    while core.has_work:
        for output in core.step():
            if output.error:
                raise RuntimeError(output.error)
            tokens += len(output.token_ids)
    seconds = time.perf_counter() - started
    if tokens != BATCH * TOKENS:
        raise RuntimeError(f"{name}: {tokens} tokens instead of {BATCH * TOKENS}")
    return tokens / seconds


if __name__ == "__main__":
    sys.exit(main())
