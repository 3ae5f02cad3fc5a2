"""Dummy batches: plans with made-up requests, to warm up before the first real one and to profile a full step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import BlockUpdate, NewRequest, ScheduledChunk, StepPlan

STEPS: Final = 3
"""Most tokens a dummy batch may sample for one request."""

ORDINARY: Final = SamplingParams(temperature=1.0, top_p=0.9, top_k=20, seed=0, max_tokens=STEPS)
HEAVIEST: Final = SamplingParams(
    temperature=1.0, top_p=0.9, top_k=20, seed=0, max_tokens=STEPS, repetition_penalty=1.1, presence_penalty=0.1,
    frequency_penalty=0.1, min_tokens=STEPS, logprobs=20, prompt_logprobs=20,
)  # fmt: skip
"""All stages of sampling at once, and all of a prompt's positions scored."""
VARIETY: Final = (
    SamplingParams(temperature=0.0, max_tokens=STEPS),
    ORDINARY,
    HEAVIEST,
    SamplingParams(temperature=0.7, seed=0, max_tokens=STEPS),
    SamplingParams(temperature=0.7, seed=0, top_k=5, max_tokens=STEPS),
    SamplingParams(temperature=0.7, seed=0, top_p=0.5, max_tokens=STEPS),
    SamplingParams(temperature=0.0, repetition_penalty=1.1, max_tokens=STEPS),
    SamplingParams(temperature=0.0, min_tokens=STEPS, max_tokens=STEPS),
    SamplingParams(temperature=0.0, logprobs=1, max_tokens=STEPS),
)
"""Each stage of sampling alone, and several together."""
_UNSAMPLED: Final = SamplingParams(temperature=0.0, max_tokens=1)
_MASKED: Final = (0, 1)


def blocks_for(lengths: Sequence[int]) -> int:
    """KV blocks that requests of these lengths take in a dummy batch."""
    return sum(-(-(length + STEPS) // BLOCK_SIZE) for length in lengths)


class DummyBatch:
    """Requests in slots 0, 1, ... and in blocks 0, 1, ...; request i samples by ``variants[i % len(variants)]``."""

    def __init__(self, variants: Sequence[SamplingParams] = (ORDINARY,), *, generates: bool = True) -> None:
        """``generates`` False: of a model without output matrix; states are pooled instead of tokens sampled."""
        self._variants = variants if generates else (_UNSAMPLED,)
        self.generates = generates
        self._lengths: list[int] = []
        self._blocks = 0
        self._steps = 0

    def step(self, entering: Sequence[int] = (), *, decoding: int = 0) -> StepPlan:
        """Decode the first so many requests, and prefill new ones of these lengths."""
        chunks = []
        for slot in range(decoding):
            chunks.append(ScheduledChunk(slot, self._lengths[slot], 1, True, f"dummy-{slot}"))
            self._lengths[slot] += 1
        new_requests, updates = [], []
        for length in entering:
            slot, blocks = len(self._lengths), blocks_for([length])
            sampling = self._variants[slot % len(self._variants)]
            masked = _MASKED if sampling.min_tokens else ()
            new_requests.append(
                NewRequest(
                    slot,
                    f"dummy-{slot}",
                    [0] * length,
                    length,
                    sampling,
                    masked_until_min_tokens=masked,
                    pooling="" if self.generates else "mean",
                )
            )
            updates.append(BlockUpdate(slot, 0, list(range(self._blocks, self._blocks + blocks))))
            chunks.append(ScheduledChunk(slot, 0, length, self.generates, f"dummy-{slot}"))
            self._lengths.append(length)
            self._blocks += blocks
        self._steps += 1
        return StepPlan(self._steps, chunks, new_requests, updates)

    @property
    def slots(self) -> list[int]:
        """The slots in use."""
        return list(range(len(self._lengths)))
