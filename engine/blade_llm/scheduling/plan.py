"""The step plan: all that the scheduler says to the runner, and all that the runner answers.

Plain data, no torch: a plan of a few hundred bytes also travels to other ranks. Every live request owns one *row* of
the runner's persistent tables (token ids, block table, sampling state) from admission to its end; a step names rows and
positions, and the runner gathers its inputs from the tables. So a token sampled in step N feeds step N+1 on the device,
before the host has seen it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request enters a row: everything about it that lasts longer than one step."""

    row: int
    request_id: str
    token_ids: list[int]
    """Prompt, and after a preemption also what was generated before it."""
    num_prompt_tokens: int
    """Where the output begins in ``token_ids``: penalties tell prompt from output."""
    sampling: SamplingParams
    """With ``seed`` filled in."""
    sample_index: int = 0
    """Which of a request's parallel samples this is; part of the noise key."""
    masked_until_min_tokens: tuple[int, ...] = ()
    """Token ids that ``min_tokens`` forbids for now (end-of-sequence and stop ids)."""
    adapter_slot: int = 0
    """0: the base model."""


@dataclass(frozen=True, slots=True)
class BlockUpdate:
    """Blocks appended to a row's block table, from index ``start`` on."""

    row: int
    start: int
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One row's share of a step: compute positions ``start .. start + count - 1``."""

    row: int
    start: int
    count: int
    sample: bool
    """Draw the token at position ``start + count`` from the last computed position's logits."""
    request_id: str


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. The runner applies ``freed_rows``, ``new_rows``, ``block_updates`` in this order, then computes."""

    step: int
    rows: list[ScheduledRow]
    """Decodes first, then prefill chunks."""
    new_rows: list[NewRow] = field(default_factory=list)
    block_updates: list[BlockUpdate] = field(default_factory=list)
    freed_rows: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens the forward pass computes."""
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step drew, one entry for each plan row with ``sample`` set, in plan order.

    ``tokens[i]`` holds 0..k+1 accepted tokens; without speculation exactly one.
    """

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs] | None]


class PendingForward(Protocol):
    """A launched forward pass; opaque to everyone but its runner."""


class PendingStep(Protocol):
    """A launched step whose tokens may still be on the device."""

    def done(self) -> bool:
        """Whether :meth:`result` would return at once. Always true on CPU, where torch is synchronous."""

    def result(self) -> StepResult:
        """Wait for the tokens and return them."""


class Runner(Protocol):
    """Executes plans. ``blade_llm.runner`` has the real one; scheduler and engine tests use a fake."""

    def launch_forward(self, plan: StepPlan) -> PendingForward:
        """Apply the plan to the tables, gather the inputs and launch the forward pass."""

    def launch_sampling(self, forward: PendingForward) -> PendingStep:
        """Launch the draw, which writes each token into its row's table at its position."""
