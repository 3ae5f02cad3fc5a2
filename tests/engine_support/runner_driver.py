"""Drives a runner by hand-made plans, without scheduler or cache: what a plan says is what the test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from engine_support.token_masks import masks_for

from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.plan import BlockCopy, BlockUpdate, NewRow, ScheduledRow, StepPlan, TokenUpdate

GREEDY = SamplingParams(temperature=0.0, max_tokens=1000)


@dataclass
class Live:
    """A request in a row."""

    row: int
    tokens: list[int]
    blocks: list[int]
    computed: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Driver:
    """Gives rows and blocks out, remembers tokens, and keeps the last step's logits."""

    def __init__(self, runner: TorchRunner) -> None:
        self.runner = runner
        self.free_blocks = list(range(runner.num_blocks))
        self.step_number = 0
        self.live: dict[int, Live] = {}
        self.logits: dict[int, torch.Tensor] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        """By row, what the steps told of its prompt, appended."""
        self.embeddings: dict[int, torch.Tensor] = {}
        """By row, the pooled state: [hidden] fp32."""
        self.allowed: dict[int, list[int]] = {}
        """Row → the only tokens it may draw."""
        self._pooled: set[int] = set()
        self._new: list[NewRow] = []
        self._updates: list[BlockUpdate] = []
        self._freed: list[int] = []
        self._copies: list[BlockCopy] = []
        self._tokens: list[TokenUpdate] = []

    def enter(
        self,
        row: int,
        tokens: list[int],
        sampling: SamplingParams = GREEDY,
        *,
        prompt: int | None = None,
        shared: list[int] = [],  # noqa: B006 - read only
        sample_index: int = 0,
        masked: tuple[int, ...] = (),
        pooling: Literal["", "last", "mean"] = "",
    ) -> Live:
        """Put a request into a row; its first ``16 * len(shared)`` tokens are already in the shared blocks."""
        new = NewRow(
            row, f"r{row}", list(tokens), prompt or len(tokens), sampling, sample_index, masked, pooling=pooling
        )
        self._pooled.discard(row)
        if pooling:
            self._pooled.add(row)
        self._new.append(new)
        if shared:
            self._updates.append(BlockUpdate(row, 0, list(shared)))
        self.live[row] = Live(row, list(tokens), list(shared), 16 * len(shared))
        return self.live[row]

    def leave(self, row: int, *, keep_blocks: bool = False) -> None:
        request = self.live.pop(row)
        self._freed.append(row)
        if not keep_blocks:
            # Handed out again at once, newest first, so that stale entries would be noticed.
            self.free_blocks[:0] = request.blocks

    def branch(self, branches: dict[int, tuple[int, list[int]]], sampling: SamplingParams, *, prompt: int) -> None:
        """Row → the row whose computed tokens it goes on with, and all its tokens. Either may be any other's.

        Full blocks are shared, the last is copied; what nobody holds any more is free.
        """
        before = dict(self.live)
        for row, (source, tokens) in branches.items():
            origin = before[source]
            full, rest = divmod(origin.computed, 16)
            request = self.enter(row, tokens, sampling, prompt=prompt)
            request.computed, request.blocks = origin.computed, origin.blocks[:full]
            if rest:
                self._copies.append(BlockCopy(origin.blocks[full], self.free_blocks[0]))
                request.blocks.append(self.free_blocks.pop(0))
            self._updates.append(BlockUpdate(row, 0, list(request.blocks)))
        held = {block for live in self.live.values() for block in live.blocks}
        known = {block for live in before.values() for block in live.blocks}
        self.free_blocks += sorted(known - held)

    def force(self, row: int, tokens: list[int]) -> None:
        """Tokens that follow the row's own without a draw."""
        request = self.live[row]
        self._tokens.append(TokenUpdate(row, len(request.tokens), tokens))
        request.tokens += tokens

    def step(self, counts: dict[int, int]) -> dict[int, int]:
        """Compute so many tokens of each row; rows that reach their end draw. Returns the drawn tokens by row."""
        shares = []
        for row, count in counts.items():
            request = self.live[row]
            end = request.computed + count
            assert end <= len(request.tokens)
            needed = -(-end // 16) - len(request.blocks)
            if needed > 0:
                taken = [self.free_blocks.pop(0) for _ in range(needed)]
                self._updates.append(BlockUpdate(row, len(request.blocks), taken))
                request.blocks += taken
            draws = end == len(request.tokens) and row not in self._pooled
            shares.append(ScheduledRow(row, request.computed, count, draws, f"r{row}"))
            request.computed = end
        plan = StepPlan(self.step_number, shares, self._new, self._updates, self._freed, self._copies, self._tokens)
        self.step_number += 1
        self._new, self._updates, self._freed, self._copies, self._tokens = [], [], [], [], []
        forward = self.runner.launch_forward(plan)
        drawing = [share.row for share in shares if share.sample]
        if forward.logits is not None:
            self.logits = dict(zip(drawing, forward.logits.float(), strict=True))
        masks = masks_for(drawing, self.allowed, self.runner.model_config.vocab_size)
        result = self.runner.launch_sampling(forward, masks).result()
        for index, logprobs_of_share in result.prompt_logprobs.items():
            self.prompt_logprobs.setdefault(shares[index].row, []).extend(logprobs_of_share)
        for index, state in result.embeddings.items():
            self.embeddings[shares[index].row] = torch.frombuffer(bytearray(state), dtype=torch.float32)
        drawn: dict[int, int] = {}
        for row, tokens, logprobs in zip(drawing, result.tokens, result.logprobs, strict=True):
            (drawn[row],) = tokens
            self.live[row].tokens += tokens
            self.live[row].logprobs += logprobs or []
        return drawn

    def decode(self, rows: list[int], steps: int) -> None:
        for _ in range(steps):
            self.step(dict.fromkeys(rows, 1))

    def generate(self, row: int, prompt: list[int], count: int, sampling: SamplingParams = GREEDY) -> list[int]:
        """One request alone, from entering to leaving."""
        request = self.enter(row, prompt, sampling)
        self.step({row: len(prompt)})
        self.decode([row], count - 1)
        self.leave(row)
        return request.tokens[len(prompt) :]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random tokens of the tiny models; the same for the same ``seed``."""
    return torch.randint(2, 199, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
