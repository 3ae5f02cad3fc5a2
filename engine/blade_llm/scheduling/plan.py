"""The step plan: all that the scheduler says to the runner, and all that the runner answers.

Plain data, no torch: a plan of a few KB also travels to other ranks as msgpack. Every live request owns one *row* of
the runner's persistent tables (token ids, block table, sampling state) from admission to its end; a step names rows and
positions, and the runner gathers its inputs from the tables. So a token sampled in step N feeds step N+1 on the device,
before the host has seen it.

How many tokens a draw brings may not be known when the next steps are planned. The agreement: the scheduler presumes
that every launched draw brings the most it can (``drafts + 1``) and takes blocks for that; the runner, which knows how
many came, continues each row where its tokens end, that is ``start`` is moved left by the tokens that did not come. So
no launched step is wasted on a wrong guess, and any number of steps may be in flight.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from blade_llm.sampling.masks import TokenMasks
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs

FinishReason = Literal["stop", "length", "abort"]


class InputEmbeddings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Positions ``start .. start + count - 1`` of a prompt are fed with given embeddings (an image's), not tokens'."""

    start: int
    count: int
    handle: str
    """Names the embeddings to the runner; opaque to everyone else."""


class NewRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    embeddings: tuple[InputEmbeddings, ...] = ()
    """In order of position."""
    pooling: Literal["", "last", "mean"] = ""
    """Not empty: nothing is drawn; the step that computes the prompt's last position brings its pooled state."""


class BlockUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks appended to a row's block table, from index ``start`` on."""

    row: int
    start: int
    blocks: list[int]


class BlockCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Copy a block's keys and values, of all layers, to another: what two requests shared, one is about to change."""

    source: int
    target: int


class TokenUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of a row from position ``start`` on that were not drawn: a grammar left no choice. Later draws go on
    after them."""

    row: int
    start: int
    tokens: list[int]


class ScheduledRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row's share of a step: compute positions ``start .. start + count - 1``."""

    row: int
    start: int
    """Presumes, where ``sample`` is set, that every draw in flight brings all it can; see the module's agreement."""
    count: int
    sample: bool
    """Draw the token that follows the row's last one, and check ``drafts`` guesses on the way."""
    request_id: str
    drafts: int = 0
    """The last so many of ``count`` are tokens the runner guesses (speculation); the draw brings 0..drafts+1 tokens."""


class StepPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step. The runner applies ``freed_rows``, ``new_rows``, ``block_updates``, ``block_copies``, ``token_updates``
    in this order, then computes."""

    step: int
    rows: list[ScheduledRow]
    """First those of one position, which is what most decodes and all beams compute; then longer ones: jumps over
    forced tokens, decodes with drafts, prefill chunks."""
    new_rows: list[NewRow] = []
    block_updates: list[BlockUpdate] = []
    freed_rows: list[int] = []
    block_copies: list[BlockCopy] = []
    token_updates: list[TokenUpdate] = []

    @property
    def num_tokens(self) -> int:
        """Tokens the forward pass computes."""
        return sum(row.count for row in self.rows)


class StepResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a step drew, one entry for each plan row with ``sample`` set, in plan order.

    ``tokens[i]`` holds 0..drafts+1 accepted tokens; without speculation exactly one.
    """

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs] | None]
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    """Index into the plan's rows → for each position that the row's share computed and whose next token is one of the
    prompt: that token's. Only rows that ask (``sampling.prompt_logprobs``), and only in their prefill."""
    embeddings: dict[int, bytes] = {}
    """Index into the plan's rows → the pooled hidden state, fp32 little-endian."""


class PendingForward(Protocol):
    """A launched forward pass; opaque to everyone but its runner."""


class PendingStep(Protocol):
    """A launched step whose tokens may still be on the device."""

    def done(self) -> bool:
        """Whether :meth:`result` would return at once. Always true on CPU, where torch is synchronous."""

    def result(self) -> StepResult:
        """Wait for the tokens and return them."""


class Runner(Protocol):
    """Executes plans, in the order of their launches. ``blade_llm.runner`` has the real one; tests use fakes.

    ``launch_forward`` of step N+1 may be called before the tokens of step N are asked for, and ``launch_sampling`` of
    N+1 after that.
    """

    def launch_forward(self, plan: StepPlan) -> PendingForward:
        """Apply the plan to the tables, gather the inputs and launch the forward pass."""

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> PendingStep:
        """Launch the draw, which writes each token into its row's table at its position. ``masks``: what the rows with
        a grammar may draw."""
