"""PART=speculation: what drafts gain on a GPU: decodes of a 7B with a draft model of a fourteenth, and with a head
of EAGLE-3, over those of the same engine without, at one, eight and 32 streams; and what a step of lookahead decoding
costs.

Random models never agree, so acceptance is given: each draft token is taken with a stated probability, whatever was
sampled. All else is as ever: the draft model drafts, the model verifies, and the controller decides how many tokens are
worth it.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.figures import QUICK, Figure
from benchmarks.gpu.generation import add, build, clear, free_memory, prompt
from benchmarks.gpu.machine import DRY, Results, limits
from benchmarks.gpu.shapes import MODEL, TINY, Shape
from blade_llm.config import SpeculativeConfig
from blade_llm.engine.core import EngineCore
from blade_llm.engine.start import freeze_gc_heap
from blade_llm.runner.pending import Drafts

DRAFT = TINY if DRY else Shape("qwen2.5-0.5b", 896, 24, 14, 2, 4864, 151936, "Qwen2ForCausalLM", 1e6)
BATCHES = (1, 2) if DRY else (1, 8, 32)
CONTEXTS = (16,) if DRY else (1024, 8192)
TOKENS = 8 if DRY else 96 if QUICK else 192
KV_TOKENS = 2 * max(BATCHES) * (CONTEXTS[0] + 4 * TOKENS) + 2 * (CONTEXTS[-1] + 4 * TOKENS)
HEAD_TOKENS = 32_000
"""Tokens that a head of EAGLE-3 drafts, as most published ones do."""
RATES = (0.6, 0.8)
TARGETS = {(1, 0.6): 1.5, (1, 0.8): 2.0, (32, 0.6): 0.98, (32, 0.8): 0.98}
"""Of the rate without drafts, by streams and acceptance."""
LOOK_AHEAD = SpeculativeConfig(
    method="look_ahead", look_ahead_window_size=15, look_ahead_gram_size=5, guess_set_size=15
)


def main() -> int:
    torch.manual_seed(0)
    results = Results("speculation")
    results.measure("limits", limits)
    rates: dict[tuple[int, int], float] = {}
    results.measure("normal", normal, rates)
    free_memory()
    results.measure("draft", draft, rates)
    free_memory()
    results.measure("eagle3", eagle3, rates)
    free_memory()
    results.measure("look_ahead", look_ahead, rates)
    return results.finish()


def normal(rates: dict[tuple[int, int], float]) -> Iterator[Figure]:
    """Tokens a second without drafts, also into ``rates``, by streams and context."""
    core = started()
    for streams, context in loads():
        rates[streams, context] = rate_of(core, streams, context)
        yield Figure(f"normal_b{streams}_c{context}", rates[streams, context], "tokens/s")
    clear(core)


def draft(rates: Mapping[tuple[int, int], float]) -> Iterator[Figure]:
    """The same with a draft model, over that."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-draft-"))
    DRAFT.write(folder)
    yield from with_given_acceptance(SpeculativeConfig(method="draft", draft_model=str(folder)), rates)


def eagle3(rates: Mapping[tuple[int, int], float]) -> Iterator[Figure]:
    """The same with a head of EAGLE-3: a layer of the model's size that drafts 32,000 tokens."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-head-"))
    fields = {
        **MODEL.fields,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": min(HEAD_TOKENS, MODEL.vocabulary),
        "eagle_aux_hidden_state_layer_ids": [1, MODEL.layers // 2, MODEL.layers - 1],
    }
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    yield from with_given_acceptance(SpeculativeConfig(method="eagle3", draft_model=str(folder)), rates)


def with_given_acceptance(speculative: SpeculativeConfig, rates: Mapping[tuple[int, int], float]) -> Iterator[Figure]:
    """Step times, and tokens a second over those without drafts."""
    core = started(speculative)
    yield from step_times(core)
    for acceptance in RATES:
        with patch.object(Drafts, "accepted", accepting(acceptance)):
            for streams, context in loads():
                ratio = rate_of(core, streams, context) / rates[streams, context]
                target = TARGETS.get((streams, acceptance)) if context == CONTEXTS[0] and not DRY else None
                goal = () if target is None else (">=", target)
                name = f"{speculative.method}_{acceptance}_b{streams}_c{context}"
                yield Figure(name, ratio, "of normal", *goal)
    clear(core)


def look_ahead(rates: Mapping[tuple[int, int], float]) -> Iterator[Figure]:
    """A step with the window and the guesses of the paper's 7B, over one without."""
    core = started(LOOK_AHEAD)
    yield from step_times(core)
    clear(core)


def step_times(core: EngineCore) -> Iterator[Figure]:
    """What the engine measured at its start, for its cost model."""
    speculator: Any = core._speculator
    seconds = speculator._seconds
    for tokens in (1, 2, 4, 6, 8, 16, 32, 64):
        yield Figure(f"step_of_{tokens}", 1e3 * seconds.target_of(tokens), "ms")
    if seconds.draft(1, 1):
        yield Figure("draft_token_b1", 1e3 * seconds.draft(1, 1), "ms")


def started(speculative: SpeculativeConfig | None = None) -> EngineCore:
    core = build(
        MODEL,
        max_num_seqs=max(BATCHES) * 2,
        max_batch_tokens=64 if DRY else 2048,
        kv_tokens=KV_TOKENS,
        speculative=speculative,
        cuda_graph_max_batch_size=max(BATCHES),
        cuda_graph_max_tokens=32 if DRY else 256,
    )
    gc.collect()
    freeze_gc_heap()  # as the engine's process does
    return core


def loads() -> list[tuple[int, int]]:
    """Streams and tokens of their prompts: many only with short ones."""
    return [(streams, CONTEXTS[0]) for streams in BATCHES] + [(1, context) for context in CONTEXTS[1:]]


def rate_of(core: EngineCore, streams: int, context: int) -> float:
    """Tokens a second from when all streams decode until the first is done; the better of two rounds."""
    return max(_round(core, streams, context, seed) for seed in range(2))


def _round(core: EngineCore, streams: int, context: int, seed: int) -> float:
    clear(core)
    rng = random.Random(seed)
    left = {add(core, prompt(MODEL, context, rng), TOKENS) for _ in range(streams)}
    while left:
        left -= {output.request_id for output in core.step()}
    start, tokens = time.perf_counter(), 0
    while True:
        outputs = core.step()
        tokens += sum(len(output.token_ids) for output in outputs)
        if any(output.finish_reason for output in outputs):
            return tokens / (time.perf_counter() - start)


def accepting(rate: float) -> Any:
    """In place of :meth:`~blade_llm.runner.pending.Drafts.accepted`: tokens are accepted with this probability."""
    choose = random.Random(7)

    def accepted(drafts: Drafts, sampled: list[int], drafted: list[int], paths: Mapping[int, Any]) -> list[list[int]]:
        brought, row = [], 0
        for count in drafts.counts:
            end = row
            while end < row + count and choose.random() < rate:
                end += 1
            brought.append(sampled[row : end + 1])
            row += count + 1
        return brought

    return accepted


if __name__ == "__main__":
    sys.exit(main())
