"""A request while the engine works on it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from blade_llm.cache.prefix_cache import HashChain
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.grammar import Grammar
from blade_llm.scheduling.output import RequestError
from blade_llm.scheduling.phase import RUNNING_PHASES, TRANSITIONS, WAITING_PHASES, Phase
from blade_llm.spec.vision.images import ImagePixels, ImageSpan

NO_SLOT = -1
NO_BARRIER: Final = sys.maxsize
"""The :attr:`Request.image_barrier` of a request that waits for no image: it is behind every position."""


class RequestRefusedError(ValueError):
    """A request that can never run as it is; the message says what to change."""

    def __init__(self, error: RequestError | str) -> None:
        self.error: Final = RequestError(message=error) if isinstance(error, str) else error
        super().__init__(str(self.error))


def pixel_bytes(samples: Sequence[Request]) -> int:
    """Bytes of the images of requests that are samples of one prompt and not in the scheduler yet."""
    return sum(len(image.pixels) for image in samples[0].pixels.values())


@dataclass(slots=True, eq=False)
class Request:
    """The scheduler's state of one request. Compared by identity: a client may use an id again."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    sample_index: int = 0
    cache_salt: str = ""
    priority: int = 0
    """Lower runs earlier and is preempted later."""
    output_token_ids: Sequence[int] = ()
    """Tokens that another engine has generated already: the request starts as if preempted after these."""
    adapter: int = 0
    """Number of its LoRA adapter, which is in host memory; 0: the base model."""
    adapter_slot: int = 0
    """Of the adapter, while the request runs."""
    adapter_digest: bytes = b""
    """Digest of the adapter's contents: KV blocks are shared among requests of equal adapters only."""
    images: tuple[ImageSpan, ...] = ()
    """Where the prompt is fed with the embeddings of images; sorted by position."""
    pixels: Mapping[bytes, ImagePixels] = field(default_factory=dict)
    """By digest, those of all its images; its samples have one together."""
    pooling: Literal["", "last", "mean", "cls"] = ""
    """Not empty: see :class:`~blade_llm.scheduling.plan.NewRequest`."""
    second_text: int = 0
    """See :class:`~blade_llm.scheduling.plan.NewRequest`."""
    output_ids: tuple[str, ...] = ()
    """The request ids that the outputs of a beam search bear, the best one's first."""
    grammar: Grammar | None = None
    """Follows the output; None: the output is free."""

    created: float = field(default_factory=time.monotonic)
    """Seconds of the monotonic clock."""
    queue_seconds: float | None = None
    """From then to its first admission."""
    adapter_seconds: float = 0.0
    """From then until its adapter was loaded; 0 where that had been."""
    preempted_after: list[float] = field(default_factory=list)
    """When it was preempted, counted from then; the first times of many."""
    arrival: int = 0
    """Order of arrival, given by the scheduler."""
    max_total: int = 0
    """Prompt and output together never get longer."""
    stop_ids: frozenset[int] = frozenset()
    """End-of-sequence (unless ignored) and stop ids."""
    chain: HashChain = field(init=False)
    """Digests of its full blocks, given by the scheduler."""

    num_prompt_tokens: int = field(init=False)
    is_beam_search: bool = field(init=False)
    phase: Phase = Phase.WAITING
    """Changed by :meth:`enter_phase` only."""
    token_ids: list[int] = field(default_factory=list)
    """Prompt and delivered output."""
    slot: int = NO_SLOT
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Positions of the prefill that were cached or are launched."""
    prefill_end: int = 0
    """Positions known at admission: up to here it is prefill, and blocks are allocated already."""
    image_barrier: int = NO_BARRIER
    """Where the first image begins that is not encoded yet: nothing from there on can be computed."""
    num_registered: int = 0
    """Blocks of the table that the prefix cache has."""
    num_in_flight: int = 0
    """Tokens that launched steps sample at most and that are not delivered yet."""
    steps_in_flight: int = 0
    """Launched steps with this request that are not delivered."""
    matched: bool = False
    """While it waits: the next four are what the prefix cache had when last looked at."""
    blocks_needed: int = 0
    """Free blocks it needs at least."""
    num_cached_blocks: int = 0
    """Blocks of its beginning that are cached."""
    num_cached: int = 0
    """Tokens in them."""
    awaited_digest: bytes | None = None
    """Digest of the first block that is not cached and could be."""
    overtaken: int = 0
    """Requests behind it that were admitted before it."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache at first admission."""
    has_output: bool = False
    """Its first output has been made."""
    output_complete: bool = False
    """Its grammar allows no more than to end, or it came with an output that has ended: what is sampled is dropped."""
    pending_forced_tokens: list[int] = field(default_factory=list)
    """Tokens that the grammar forced before the first sampled one; they come with its output."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Those collected so far, of the prompt's first tokens; None where the request wants none."""

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.is_beam_search = self.sampling.beam_width != 0
        self.token_ids = [*self.prompt_token_ids, *self.output_token_ids]
        if self.sampling.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        if self.sampling.seed is None:
            self.sampling = msgspec.structs.replace(self.sampling, seed=random.getrandbits(63))

    def enter_phase(self, phase: Phase) -> None:
        """Go on to another phase, one that may follow the present one."""
        assert phase in TRANSITIONS[self.phase], f"{self.request_id} cannot go from {self.phase} to {phase}"
        self.phase = phase

    @property
    def is_running(self) -> bool:
        """Whether it owns a slot and blocks."""
        return self.phase in RUNNING_PHASES

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a slot and blocks."""
        return self.phase in WAITING_PHASES

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: who goes first. Unique."""
        return self.priority, self.arrival

    @property
    def num_slots(self) -> int:
        """Slots it needs to run."""
        return max(1, self.sampling.beam_width)

    @property
    def awaits_image(self) -> bool:
        """Whether an image of its prefill is not encoded yet."""
        return self.image_barrier != NO_BARRIER

    @property
    def num_computable(self) -> int:
        """Positions of its prefill that can be computed now."""
        return max(0, min(self.prefill_end, self.image_barrier) - self.num_computed)

    @property
    def num_unregistered(self) -> int:
        """Blocks of its prefill that it is still to bring into the prefix cache, as far as they have digests."""
        return len(self.chain.digests) - self.num_registered if self.block_table else 0

    @property
    def cacheable(self) -> int | None:
        """The number of first positions that may come from the prefix cache; None: all it has."""
        if self.pooling in ("mean", "cls"):
            return 0
        if self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens:
            return len(self.prompt_logprobs) - 1
        return None
