"""What two ranks of one core each reach beside one rank with both: ``python -m benchmarks.engine.tensor_parallel``.

The model is that of ``make bench`` (Qwen2.5-0.5B's shape, random weights). Both engines live in one process and its
children, and rounds take turns, so that neither has a quieter machine. What several ranks cost is two all-reduces a
layer and one gathering of logits a step; what they gain, on more than one socket, cannot be seen here.

The tokens of both are compared: sums of two ranks are rounded once more, so that in bf16 a few of them differ.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from benchmarks.figures import QUICK, Figure, report
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import CACHE
from benchmarks.peers.shapes import KNOWN_TOKENS
from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams

ROUNDS: Final = 2 if QUICK else 7
LENGTH: Final = 32 if QUICK else 128
PROMPT: Final = 256
MANY: Final = 8 if QUICK else 32
RANKS: Final = 2


def main() -> int:
    model = random_model(CACHE / "models" / "qwen2-0.5b")
    one, ranks = _core(model, 1), _core(model, RANKS)
    figures = []
    for name, batch in (("single", 1), (f"batch_{MANY}", MANY)):
        decode, prefill, equal = _compare(one, ranks, batch)
        figures += [
            Figure(f"decode_{name}", decode, "of one rank", ">=", 0.95),
            Figure(f"prefill_{name}", prefill, "of one rank", ">=", 0.95),
            Figure(f"tokens_{name}", equal, "equal to one rank's"),
        ]
    return report("tensor_parallel", figures)


def _core(model: Path, ranks: int) -> EngineCore:
    return build_core(
        EngineConfig(
            model=str(model),
            served_names=("m",),
            dtype="bfloat16",
            max_model_len=512,
            max_num_seqs=MANY,
            kv_cache_bytes=512 << 20,
            enable_prompt_cache=False,
            num_threads=RANKS // ranks,
            tensor_parallel_size=ranks,
        )
    )


def _compare(one: EngineCore, ranks: EngineCore, batch: int) -> tuple[float, float, float]:
    """Speed of decoding and of prefill over those of one rank, and the share of equal tokens."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, KNOWN_TOKENS, (PROMPT,), generator=generator).tolist() for _ in range(batch)]
    for core in (one, ranks):
        _round(core, prompts)
    decodes, prefills, equal = [], [], 0.0
    for _ in range(ROUNDS):
        expected, prefill, decode = _round(one, prompts)
        found, of_ranks, decode_of_ranks = _round(ranks, prompts)
        prefills.append(prefill / of_ranks)
        decodes.append(decode / decode_of_ranks)
        pairs = [pair for name in expected for pair in zip(found[name], expected[name], strict=True)]
        equal = sum(a == b for a, b in pairs) / len(pairs)
        assert equal > 0.3, f"only {equal:.0%} of the tokens are the same"
    return statistics.median(decodes), statistics.median(prefills), equal


def _round(core: EngineCore, prompts: Sequence[list[int]]) -> tuple[dict[str, list[int]], float, float]:
    """The tokens of requests with these prompts at once, and the seconds to the last first token and after it."""
    sampling = SamplingParams(max_tokens=LENGTH, temperature=0.0, ignore_eos=True, seed=1)
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    start = time.perf_counter()
    for name, prompt in zip(tokens, prompts, strict=True):
        core.add(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))
    began: float | None = None
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
        if began is None and all(tokens.values()):
            began = time.perf_counter()
    assert began is not None
    return tokens, began - start, time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
