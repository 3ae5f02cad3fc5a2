"""Drives a runner by hand-made plans, without scheduler or cache: what a plan says is what the test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from engine_support.token_masks import masks_for

from blade_llm.lora.reader import AdapterWeights
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.plan import (
    AdapterUpdate,
    BlockCopy,
    BlockUpdate,
    NewRequest,
    ScheduledChunk,
    StepPlan,
    TokenUpdate,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=1000)


@dataclass
class Live:
    """A request in a slot."""

    slot: int
    tokens: list[int]
    blocks: list[int]
    computed: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Driver:
    """Gives slots and blocks out, remembers tokens, and keeps the last step's logits."""

    def __init__(self, runner: TorchRunner) -> None:
        self.runner = runner
        self.free_blocks = list(range(runner.num_blocks))
        self.step_number = 0
        self.live: dict[int, Live] = {}
        self.logits: dict[int, torch.Tensor] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        """By slot, what the steps reported of its prompt, appended."""
        self.embeddings: dict[int, torch.Tensor] = {}
        """By slot, the pooled state: [hidden] fp32."""
        self.allowed: dict[int, list[int]] = {}
        """Slot → the only tokens it may sample."""
        self._pooled: set[int] = set()
        self._new: list[NewRequest] = []
        self._updates: list[BlockUpdate] = []
        self._freed: list[int] = []
        self._copies: list[BlockCopy] = []
        self._tokens: list[TokenUpdate] = []
        self._adapters: list[AdapterUpdate] = []
        self.adapter = 0
        """The adapter slot of requests that enter from now on."""

    def enter(
        self,
        slot: int,
        tokens: list[int],
        sampling: SamplingParams = GREEDY,
        *,
        prompt: int | None = None,
        shared: list[int] = [],  # noqa: B006 - read only
        sample_index: int = 0,
        masked: tuple[int, ...] = (),
        pooling: Literal["", "last", "mean", "cls"] = "",
        second_text: int = 0,
    ) -> Live:
        """Put a request into a slot; its first ``16 * len(shared)`` tokens are already in the shared blocks."""
        new = NewRequest(
            slot,
            f"r{slot}",
            list(tokens),
            prompt or len(tokens),
            sampling,
            sample_index,
            masked,
            pooling=pooling,
            second_text=second_text,
            adapter_slot=self.adapter,
        )
        self._pooled.discard(slot)
        if pooling:
            self._pooled.add(slot)
        self._new.append(new)
        if shared:
            self._updates.append(BlockUpdate(slot, 0, list(shared)))
        self.live[slot] = Live(slot, list(tokens), list(shared), 16 * len(shared))
        return self.live[slot]

    def place_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """From the next step on ``slot`` is this adapter."""
        assert self.runner.adapters is not None
        number = len(self.runner.adapters.loaded) + 1
        self.runner.adapters.loaded[number] = weights
        self.place_loaded(slot, number)

    def place_loaded(self, slot: int, number: int) -> None:
        """The same with what was loaded under ``number`` already."""
        self._adapters.append(AdapterUpdate(slot, number))

    def leave(self, slot: int, *, keep_blocks: bool = False) -> None:
        request = self.live.pop(slot)
        self._freed.append(slot)
        if not keep_blocks:
            # Handed out again at once, newest first, so that stale entries would be noticed.
            self.free_blocks[:0] = request.blocks

    def branch(self, branches: dict[int, tuple[int, list[int]]], sampling: SamplingParams, *, prompt: int) -> None:
        """Slot → the slot whose computed tokens it goes on with, and all its tokens. Either may be any other's.

        Full blocks are shared, the last is copied; what nobody holds any more is free.
        """
        before = dict(self.live)
        for slot, (source, tokens) in branches.items():
            origin = before[source]
            full, rest = divmod(origin.computed, 16)
            request = self.enter(slot, tokens, sampling, prompt=prompt)
            request.computed, request.blocks = origin.computed, origin.blocks[:full]
            if rest:
                self._copies.append(BlockCopy(origin.blocks[full], self.free_blocks[0]))
                request.blocks.append(self.free_blocks.pop(0))
            self._updates.append(BlockUpdate(slot, 0, list(request.blocks)))
        held = {block for live in self.live.values() for block in live.blocks}
        known = {block for live in before.values() for block in live.blocks}
        self.free_blocks += sorted(known - held)

    def force(self, slot: int, tokens: list[int]) -> None:
        """Tokens that follow the slot's own without a sampling."""
        request = self.live[slot]
        self._tokens.append(TokenUpdate(slot, len(request.tokens), tokens))
        request.tokens += tokens

    def step(self, counts: dict[int, int]) -> dict[int, int]:
        """Compute so many tokens of each slot; slots that reach their end sample. Returns the sampled tokens by
        slot."""
        chunks = []
        for slot, count in counts.items():
            request = self.live[slot]
            end = request.computed + count
            assert end <= len(request.tokens)
            needed = -(-end // 16) - len(request.blocks)
            if needed > 0:
                taken = [self.free_blocks.pop(0) for _ in range(needed)]
                self._updates.append(BlockUpdate(slot, len(request.blocks), taken))
                request.blocks += taken
            samples = end == len(request.tokens) and slot not in self._pooled
            chunks.append(ScheduledChunk(slot, request.computed, count, samples, f"r{slot}"))
            request.computed = end
        plan = StepPlan(
            self.step_number,
            chunks,
            self._new,
            self._updates,
            self._freed,
            self._copies,
            self._tokens,
            adapter_updates=self._adapters,
        )
        self.step_number += 1
        self._adapters = []
        self._new, self._updates, self._freed, self._copies, self._tokens = [], [], [], [], []
        forward = self.runner.launch_forward(plan)
        sampling_slots = [chunk.slot for chunk in chunks if chunk.sample]
        if forward.logits is not None:
            self.logits = dict(zip(sampling_slots, forward.logits.float(), strict=True))
        masks = masks_for(sampling_slots, self.allowed, self.runner.model_config.vocab_size)
        result = self.runner.launch_sampling(forward, masks).result()
        for index, logprobs_of_share in result.prompt_logprobs.items():
            self.prompt_logprobs.setdefault(chunks[index].slot, []).extend(logprobs_of_share)
        for index, state in result.embeddings.items():
            self.embeddings[chunks[index].slot] = torch.frombuffer(bytearray(state), dtype=torch.float32)
        sampled: dict[int, int] = {}
        for slot, tokens, logprobs in zip(sampling_slots, result.tokens, result.logprobs, strict=True):
            (sampled[slot],) = tokens
            self.live[slot].tokens += tokens
            self.live[slot].logprobs += logprobs or []
        return sampled

    def decode(self, slots: list[int], steps: int) -> None:
        for _ in range(steps):
            self.step(dict.fromkeys(slots, 1))

    def generate(self, slot: int, prompt: list[int], count: int, sampling: SamplingParams = GREEDY) -> list[int]:
        """One request alone, from entering to leaving."""
        request = self.enter(slot, prompt, sampling)
        self.step({slot: len(prompt)})
        self.decode([slot], count - 1)
        self.leave(slot)
        return request.tokens[len(prompt) :]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random tokens of the tiny models; the same for the same ``seed``."""
    return torch.randint(2, 199, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits_beside(runner: TorchRunner, others: int) -> torch.Tensor:
    """[vocab] of a prompt of 70 tokens, computed in one step with so many others of other lengths."""
    driver = Driver(runner)
    for slot in range(1, others + 1):
        driver.enter(slot, prompt_of(20 + slot))
    driver.enter(0, prompt_of(70))
    driver.step({0: 70, **{slot: 20 + slot for slot in range(1, others + 1)}})
    return driver.logits[0]
