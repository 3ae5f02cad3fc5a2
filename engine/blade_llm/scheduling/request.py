"""A request while the engine works on it."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from blade_llm.cache.prompt_cache import HashChain
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.grammar import Grammar
from blade_llm.scheduling.plan import InputEmbeddings

if TYPE_CHECKING:
    from blade_llm.scheduling.beam_rows import BeamRows
    from blade_llm.scheduling.samples import SampleGroup

NO_ROW = -1


class RequestRefusedError(ValueError):
    """A request that can never run as it is; the message says what to change."""


class Status(enum.Enum):
    WAITING = enum.auto()
    """Owns neither row nor blocks: new, or preempted."""
    RUNNING = enum.auto()
    """Owns a row and the blocks of all its computed tokens."""
    FINISHED = enum.auto()


@dataclass(slots=True, eq=False)
class Request:
    """What the scheduler knows of one request. Compared by identity: a client may use an id again.

    Three booleans say what a running request does in the next steps; a waiting one has the first two false:

    - ``decoding``: every position but that of the last known token is launched, and each step draws one more.
    - ``jumping``: a grammar forced tokens, from ``num_computed + 1`` to ``prefill_end - 1``, that are still to be
      computed, in a decode of several positions. Never together with ``decoding``.
    - neither: it is in its prefill (which may be the rest of a jump) or its beam search, or, with a grammar, waits for
      what is in flight so that it can jump.
    - ``closing``, beside any of these and for good: its grammar allows no more than to end, or it came with an answer
      that has ended, and what is being drawn is thrown away.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    sample_index: int = 0
    cache_salt: str = ""
    priority: int = 0
    """Lower runs earlier and is preempted later."""
    output_token_ids: Sequence[int] = ()
    """What it has answered already, elsewhere: it starts as if preempted after these."""
    adapter_slot: int = 0
    """0: the base model."""
    adapter_digest: bytes = b""
    """Digest of the adapter's contents: KV blocks are shared among requests of equal adapters only."""
    embeddings: tuple[InputEmbeddings, ...] = ()
    """Positions of the prompt that are fed with embeddings."""
    pooling: Literal["", "last", "mean"] = ""
    """Not empty: see :class:`~blade_llm.scheduling.plan.NewRow`."""
    answer_ids: tuple[str, ...] = ()
    """Of a beam search: where its answers go, the best one's first."""
    grammar: Grammar | None = None
    """Follows the answer; None: it is free."""
    image_digest: bytes = b""
    """Digest of what the embeddings were made from and where they go, as tokens there need not tell."""

    arrival: int = 0
    """Order of arrival, given by the scheduler."""
    max_total: int = 0
    """Prompt and output together never get longer."""
    stop_ids: frozenset[int] = frozenset()
    """End-of-sequence (unless ignored) and stop ids."""
    chain: HashChain = field(init=False)
    """Names of its full blocks, given by the scheduler."""

    num_prompt_tokens: int = field(init=False)
    status: Status = Status.WAITING
    token_ids: list[int] = field(default_factory=list)
    """Prompt and delivered output."""
    row: int = NO_ROW
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Positions of the prefill that were cached or are launched."""
    prefill_end: int = 0
    """Positions known at admission: up to here it is prefill, and blocks are taken already."""
    num_registered: int = 0
    """Blocks of the table that the prompt cache knows."""
    num_in_flight: int = 0
    """Tokens that launched draws, not delivered yet, bring at most."""
    steps_in_flight: int = 0
    """Launched steps with this request that are not delivered."""
    blocks_needed: int = 0
    """Free blocks it lacked when admission last failed."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prompt cache at first admission."""
    answered: bool = False
    """Its first output has been made."""
    decoding: bool = False
    jumping: bool = False
    closing: bool = False
    group: SampleGroup | None = None
    """The samples of its prompt, when there are several."""
    beams: BeamRows | None = None
    """Its beam search."""
    undelivered: list[int] = field(default_factory=list)
    """Tokens that the grammar forced before the first draw; they come with its output."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """What has been collected, if asked for: of so many of the prompt's first tokens."""

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.token_ids = [*self.prompt_token_ids, *self.output_token_ids]
        if self.sampling.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        if self.sampling.seed is None:
            self.sampling = msgspec.structs.replace(self.sampling, seed=random.getrandbits(63))

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: who goes first. Unique."""
        return self.priority, self.arrival

    @property
    def num_rows(self) -> int:
        """Rows it needs to run."""
        return max(1, self.sampling.beam_width)

    @property
    def cacheable(self) -> int | None:
        """How many of its first positions need not be computed if the prompt cache has them; None: all it has."""
        if self.pooling == "mean":
            return 0
        if self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens:
            return len(self.prompt_logprobs) - 1
        return None
