"""What two ranks of one core each reach beside one rank with both: ``python -m benchmarks.engine.tensor_parallel``.

The model is that of ``make bench`` (Qwen2.5-0.5B's shape, random weights). Both engines live in one process and its
children, and rounds take turns, so that neither has a quieter machine. What several ranks cost is two all-reduces a
layer and one gathering of logits a step; what they gain, on more than one socket, cannot be seen here.

Sums of two ranks are rounded once more, so that in bf16 tokens differ sooner or later, and with them all that follow.
What is compared are the probabilities that both give the tokens of a prompt.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
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
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.sampling.parameters import SamplingParams

ROUNDS: Final = 2 if QUICK else 5
LENGTH: Final = 32 if QUICK else 64
PROMPT: Final = 128
MANY: Final = 8 if QUICK else 16
RANKS: Final = 2


def main() -> int:
    model = random_model(CACHE / "models" / "qwen2-0.5b")
    one, ranks = _core(model, 1), _core(model, RANKS)
    figures = [Figure("prompt_logprobs", _deviation(one, ranks), "mean difference to one rank", "<=", 0.02)]
    for name, batch in (("single", 1), (f"batch_{MANY}", MANY)):
        decode, prefill = _compare(one, ranks, batch)
        figures += [
            Figure(f"decode_{name}", decode, "of one rank", ">=", 0.95),
            Figure(f"prefill_{name}", prefill, "of one rank", ">=", 0.95),
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


def _prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, KNOWN_TOKENS, (PROMPT,), generator=generator).tolist() for _ in range(count)]


def _deviation(one: EngineCore, ranks: EngineCore) -> float:
    """Of the log-probabilities of a prompt's tokens, which are about -12."""
    [prompt] = _prompts(1)
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, seed=1)
    found: list[list[float]] = []
    for core in (one, ranks):
        core.add(GenerateRequest(request_id="p", prompt_token_ids=prompt, sampling=sampling))
        scored = [each for output in _outputs(core) for each in output.prompt_logprobs or []]
        found.append([each.chosen for each in scored if each is not None])
    assert len(found[0]) == len(found[1]) == PROMPT - 1
    return statistics.mean(abs(a - b) for a, b in zip(*found, strict=True))


def _outputs(core: EngineCore) -> Iterator[RequestOutput]:
    while core.has_work:
        yield from core.step()


def _compare(one: EngineCore, ranks: EngineCore, batch: int) -> tuple[float, float]:
    """Speed of decoding and of prefill over those of one rank."""
    prompts = _prompts(batch)
    _round(one, prompts, RANKS)
    _round(ranks, prompts, 1)
    decodes, prefills = [], []
    for _ in range(ROUNDS):
        prefill, decode = _round(one, prompts, RANKS)
        of_ranks, decode_of_ranks = _round(ranks, prompts, 1)
        prefills.append(prefill / of_ranks)
        decodes.append(decode / decode_of_ranks)
    return statistics.median(decodes), statistics.median(prefills)


def _round(core: EngineCore, prompts: Sequence[list[int]], threads: int) -> tuple[float, float]:
    """Seconds of requests with these prompts at once: to the last first token, and after it."""
    sampling = SamplingParams(max_tokens=LENGTH, temperature=0.0, ignore_eos=True, seed=1)
    torch.set_num_threads(threads)  # of the whole process, which has both engines
    waiting = {str(number) for number in range(len(prompts))}
    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        core.add(GenerateRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
    began: float | None = None
    for output in _outputs(core):
        waiting.discard(output.request_id)
        if began is None and not waiting:
            began = time.perf_counter()
    assert began is not None
    return began - start, time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
