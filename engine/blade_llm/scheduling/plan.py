"""The step plan: all that the scheduler says to the runner, and the results that the runner returns.

Plain data, no torch: a plan of a few KB also travels to other ranks as msgpack. Every live request owns one *slot* of
the runner's persistent tables (token ids, block table, sampling state) from admission to its end; a step names slots
and positions, and the runner gathers its inputs from the tables. So a token sampled in step N feeds step N+1 on the
device, before the host has seen it.

A decode may have draft tokens (speculative decoding): guesses of what comes next, computed together with its last
token. Sampling then happens at each of these positions, and brings the tokens up to the first that differs from its
draft. The slot is scheduled again when that is known.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.spec.vision.images import ImagePixels, ImageSpan

FinishReason = Literal["stop", "length", "abort"]


class NewRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request enters a slot: everything about it that lasts longer than one step."""

    slot: int
    request_id: str
    token_ids: list[int]
    """Prompt, and after a preemption also what was generated before it."""
    num_prompt_tokens: int
    """Where the output begins in ``token_ids``: penalties tell prompt from output."""
    sampling: SamplingParams
    """Its ``seed`` is filled in."""
    sample_index: int = 0
    """Index among the request's parallel samples; part of the noise key."""
    masked_until_min_tokens: tuple[int, ...] = ()
    """Token ids that ``min_tokens`` forbids for now (end-of-sequence and stop ids)."""
    adapter_slot: int = 0
    """0: the base model."""
    images: tuple[ImageSpan, ...] = ()
    """Where the prompt is fed with the embeddings of images, not with its tokens'; sorted by position."""
    pooling: Literal["", "last", "mean", "cls"] = ""
    """Not empty: nothing is sampled; the step that computes the prompt's last position brings its pooled state."""
    second_text: int = 0
    """Where the second text of a pair begins, for models that tell them apart by token types; 0: there is none."""


class BlockUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks appended to a slot's block table, from index ``start`` on."""

    slot: int
    start: int
    blocks: list[int]


class BlockCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Copy a block's keys and values, of all layers, to another (copy-on-write): what two requests shared, one is about
    to change."""

    source: int
    target: int


class TokenUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of a slot from position ``start`` on that were not sampled: a grammar forced them, and later sampling goes
    on after them; or they are draft tokens."""

    slot: int
    start: int
    tokens: list[int]


class DraftTree(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Draft tokens that branch: each goes on from an earlier one, or from the slot's last known token, and sees what it
    goes on from and nothing else (tree attention: Miao et al., SpecInfer, arXiv 2305.09781).

    The first ``num_guesses`` are guesses of what comes next, to be verified. Those behind them are verified by nobody:
    what is sampled after some of them is reported for later guesses (the window of lookahead decoding).
    """

    parents: list[int]
    """Of each draft token, the one that it goes on from; -1: the last known token. Guesses go on from guesses."""
    num_guesses: int
    window_ends: list[int]
    """Draft tokens that are no guesses, and after which a token is sampled; -1: the last known token, after which one
    is sampled anyway."""

    @property
    def num_sampled(self) -> int:
        """Positions that are sampled at."""
        return 1 + self.num_guesses + sum(end >= 0 for end in self.window_ends)


class ScheduledChunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The chunk of one slot that a step computes: positions ``start .. start + count - 1``."""

    slot: int
    start: int
    count: int
    sample: bool
    """Sample the token that follows the slot's last one, and verify ``num_draft_tokens`` on the way."""
    request_id: str
    num_draft_tokens: int = 0
    """The last so many of ``count`` are draft tokens: sampling brings 1..num_draft_tokens+1 tokens. They are among the
    plan's ``token_updates``, or the runner's draft model makes them."""
    tree: DraftTree | None = None
    """How the draft tokens branch; None: each goes on from the one before."""

    @property
    def num_guesses(self) -> int:
        """Draft tokens that are verified."""
        return self.num_draft_tokens if self.tree is None else self.tree.num_guesses

    @property
    def num_sampled(self) -> int:
        """Positions that a chunk which samples samples at."""
        return 1 + self.num_draft_tokens if self.tree is None else self.tree.num_sampled


class DraftChunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The draft model computes positions ``start .. start + count - 1`` of a slot, all of whose tokens are known. Where
    the step verifies draft tokens of the slot, the last of these is its last token, and the draft model goes on from
    there."""

    slot: int
    start: int
    count: int


class KVCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Copy the keys and values of one token, of all layers, to where its sequence has it: a draft token of a tree was
    accepted. Both are cache slots, ``block * block_size + offset``."""

    source: int
    target: int


class AdapterUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An adapter takes an adapter slot, whose former adapter no request uses any more."""

    slot: int
    """From 1 on."""
    adapter: int
    """Number of the adapter, which the runner has in host memory."""


class EncoderChunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of a run of the vision tower, which makes the embeddings of one image or of several together.

    The run begins with its first chunk, and is done when its chunks have all the row-layers of its images together.
    """

    digests: tuple[bytes, ...]
    """Of the run's images; the same in each of its chunks."""
    row_layers: int
    """How much of it to compute (:meth:`~blade_llm.spec.vision.tower.VisionSpec.work`)."""


class StepPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The plan of one step. The runner applies ``freed_slots``, ``adapter_updates``, ``new_requests``,
    ``block_updates``, ``kv_copies``, ``block_copies``, ``token_updates`` in this order, then ``freed_images``,
    ``new_images`` and ``encoder``, then computes."""

    step: int
    chunks: list[ScheduledChunk]
    """First those of one position, which is what most decodes and all beams compute; then longer ones: forced tokens,
    decodes with draft tokens, prefill chunks."""
    new_requests: list[NewRequest] = []
    block_updates: list[BlockUpdate] = []
    freed_slots: list[int] = []
    block_copies: list[BlockCopy] = []
    token_updates: list[TokenUpdate] = []
    pipeline_stages: int = 1
    """Stages that compute the step, each a part of the layers."""
    adapter_updates: list[AdapterUpdate] = []
    draft_chunks: list[DraftChunk] = []
    """Before the model computes anything."""
    kv_copies: list[KVCopy] = []
    freed_images: list[bytes] = []
    """Digests of images whose embeddings are not needed any more, or whose run ends without making them."""
    new_images: list[ImagePixels] = []
    """Those whose run begins in this step."""
    encoder: list[EncoderChunk] = []
    """What the vision tower computes, before the model. A step may have this alone, and no chunks."""

    @property
    def has_trees(self) -> bool:
        """Whether draft tokens of some chunk branch."""
        return any(chunk.tree is not None for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        """Tokens the forward pass computes."""
        return sum(chunk.count for chunk in self.chunks)


class TreeResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of the draft tokens of a tree."""

    path: list[int]
    """The draft tokens that were accepted, in order."""
    window: list[int]
    """What was sampled after each of ``window_ends``."""


class StepResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens that a step sampled, one entry for each chunk of the plan with ``sample`` set, in plan order.

    ``tokens[i]`` holds 1..num_draft_tokens+1 tokens: those that equal their drafts, and the one after; without drafts
    exactly one.
    """

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs] | None]
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    """Index into the plan's chunks → for each position that the chunk computed and whose next token is one of the
    prompt: that token's. Only requests with ``sampling.prompt_logprobs``, and only in their prefill."""
    embeddings: dict[int, bytes] = {}
    """Index into the plan's chunks → the pooled hidden state, fp32 little-endian."""
    invalid: list[int] = []
    """Indices into ``tokens`` where the logits are no numbers; the tokens mean nothing."""
    draft_invalid: bool = False
    """The draft model's logits are no numbers."""
    trees: dict[int, TreeResult] = {}
    """Index into ``tokens`` → what became of the chunk's tree. The tokens that were sampled there are not in the slot's
    table: the scheduler sends those that it takes."""
    exhausted: list[int] = []
    """Indices into ``tokens`` where no token was left to sample; the last token is none."""


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

    ``launch_forward`` of step N+1 may be called before the tokens of step N are read, and ``launch_sampling`` of N+1
    after that.
    """

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> PendingForward:
        """Apply the plan to the tables, gather the inputs and launch the forward pass. ``draft_masks``: of what a draft
        model samples before it."""

    def draft_tokens(self, forward: PendingForward) -> dict[int, list[int]]:
        """The draft tokens of a launched forward pass, by slot."""

    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> PendingStep:
        """Launch the sampling, which writes each token into its slot's table at its position. ``masks``: the tokens
        that requests with a grammar may sample."""

    def release_cache(self) -> None:
        """Give back the memory of the KV cache, whose blocks hold nothing that is needed, as far as the device can take
        it again by itself. Not while a step is in flight."""
