"""A runner without a model, for tests of everything above the runner.

It keeps what the real one keeps (a token table and a block table a slot) and, in place of KV tensors, what each
position of each block *stands for*: the digest of all tokens up to and including that position. Before a step computes,
it reads back the whole context of every slot through the block table, so a block that was shared wrongly, freed too
early or handed out twice is found at the first read, and a plan that breaks its contract at once.

The next token is a function of all tokens before it (of images where these stand in for tokens), of the adapter,
and, above temperature 0, of seed and sample index; so any scheduling must give the tokens that :func:`tokens_alone`
gives. Where a plan has draft tokens the runner accepts some and rejects others, and the KV of rejected ones is garbage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine_support.fake_grammar import FakeGrammar, allowed_tokens
from engine_support.images import FakeTower

from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.plan import NewRequest, ScheduledChunk, StepPlan, StepResult
from blade_llm.spec.vision.images import ImageSpan
from blade_protocol.state import MemoryPlan

BLOCK_SIZE = 16


GARBAGE = -7
"""What the KV of a rejected draft token stands for."""


def _digest(before: int, token: int | tuple[bytes, int]) -> int:
    return hash((before, token))


def _inputs(token_ids: Sequence[int], images: Iterable[ImageSpan]) -> list[int | tuple[bytes, int]]:
    """What the model reads at each position: a token, or one of an image's embeddings."""
    inputs: list[int | tuple[bytes, int]] = list(token_ids)
    for span in images:
        for offset in range(span.count):
            inputs[span.start + offset] = (span.digest, offset)
    return inputs


def _sample(
    context: int,
    sampling: SamplingParams,
    sample_index: int,
    vocab_size: int,
    masked: Iterable[int],
    allowed: Iterable[int] | None = None,
) -> int:
    """The fake model and sampler: the first token that is not masked, counting from a pseudo-random one."""
    key = (context, sampling.seed or 0, sample_index) if sampling.temperature else (context, -1, -1)
    token = hash(key) % vocab_size
    for _ in range(vocab_size):
        if token not in masked and (allowed is None or token in allowed):
            return token
        token = (token + 1) % vocab_size
    raise AssertionError("every token is masked")


def fake_logprob(context: int, token: int) -> float:
    """What the fake model makes of ``token`` after ``context``. Tokens of equal ones are rare."""
    return -(hash((context, token, "logprob")) % (1 << 20)) / (1 << 17)


def fake_logprobs(context: int, token: int, k: int, vocab_size: int) -> TokenLogprobs:
    """Of ``token`` and of the ``k`` most likely tokens."""
    ranked = (
        sorted(((fake_logprob(context, other), other) for other in range(vocab_size)), reverse=True)[:k] if k else []
    )
    return TokenLogprobs(
        fake_logprob(context, token), tuple(token for _, token in ranked), tuple(value for value, _ in ranked)
    )


def context_of(token_ids: Sequence[int], adapter: int = 0, images: Iterable[ImageSpan] = ()) -> list[int]:
    """What stands for the tokens up to each position."""
    digests, context = [], adapter
    for value in _inputs(token_ids, images):
        context = _digest(context, value)
        digests.append(context)
    return digests


def fake_embedding(digests: Sequence[int], pooling: str) -> bytes:
    """The pooled state of a prompt."""
    return struct.pack("<f", (digests[-1] if pooling == "last" else sum(digests)) % 4093)


def tokens_alone(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    vocab_size: int,
    eos_token_ids: Iterable[int] = (),
    max_model_len: int = 1 << 30,
    sample_index: int = 0,
    adapter: int = 0,
    images: Iterable[ImageSpan] = (),
    grammar: FakeGrammar | None = None,
) -> tuple[list[int], str, int | None]:
    """(output, finish reason, stop token) of a request that runs alone: no batch, no cache, no scheduler."""
    stop_ids = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_token_ids))
    context = adapter
    for value in _inputs(prompt, images):
        context = _digest(context, value)
    output: list[int] = []
    while True:
        masked = stop_ids if len(output) < sampling.min_tokens else ()
        allowed = None if grammar is None else grammar.allowed()
        if allowed is not None and not allowed - set(masked):
            return output, "stop", None
        token = _sample(context, sampling, sample_index, vocab_size, masked, allowed)
        if token in stop_ids:
            return output, "stop", token
        output.append(token)
        context = _digest(context, token)
        if grammar is not None:
            grammar.accept([token])
            if grammar.finished:
                return output, "stop", None
        if len(output) == sampling.max_tokens or len(prompt) + len(output) >= max_model_len:
            return output, "length", None


@dataclass
class FakeSlot:
    """One slot of the tables."""

    new: NewRequest
    adapter: int = 0
    token_ids: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    """``digests[p]`` stands for tokens ``0..p``."""
    blocks: list[int] = field(default_factory=list)
    pooled: int = 0
    """Positions whose states the pooling has seen."""

    def append(self, token: int, value: int | tuple[bytes, int] | None = None) -> None:
        """``value``: what the model reads in place of the token."""
        self.digests.append(
            _digest(self.digests[-1] if self.digests else self.adapter, token if value is None else value)
        )
        self.token_ids.append(token)


@dataclass(frozen=True)
class FakeForward:
    """A launched forward pass: its plan and, for each chunk that samples, the tokens it will bring."""

    plan: StepPlan
    samples: list[list[int]]
    prompt_logprobs: dict[int, list[TokenLogprobs]]
    embeddings: dict[int, bytes]


class FakePendingStep:
    """Results at once, or (``late``) only after :meth:`finish` or to someone who waits."""

    def __init__(self, result: StepResult, late: bool) -> None:
        self._result = result
        self._done = not late

    def done(self) -> bool:
        return self._done

    def finish(self) -> None:
        self._done = True

    def result(self) -> StepResult:
        self._done = True
        return self._result


class FakeRunner:
    """Implements :class:`blade_llm.scheduling.plan.Runner`; asserts that plans keep their contract.

    Args:
        late: results are not ready when the launch returns, as on a GPU.
        verify: read back the whole context of each slot in each step (quadratic; leave out for benchmarks).
    """

    def __init__(
        self,
        num_blocks: int = 64,
        max_num_seqs: int = 64,
        max_model_len: int = 1024,
        vocab_size: int = 97,
        *,
        max_batch_tokens: int | None = None,
        late: bool = False,
        verify: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.max_batch_tokens = max_batch_tokens
        self.vocab_size = vocab_size
        self.late = late
        self.verify = verify
        self.timings: dict[str, float] = {}
        self.memory_plan = MemoryPlan(
            weights=0,
            activation_peak=0,
            kv_cache=num_blocks * BLOCK_SIZE,
            kv_block_bytes=BLOCK_SIZE,
            kv_blocks=num_blocks,
            kv_tokens=num_blocks * BLOCK_SIZE,
            max_model_len=max_model_len,
            concurrent_at_max_len=num_blocks * BLOCK_SIZE / max_model_len,
            device="cpu",
        )
        self.adapters = {0: 0}
        """Adapter slot → what stands for the contents of the adapter in it."""
        self.contents: dict[int, int] = {}
        """Adapter → the same; an adapter that is not there stands for itself."""
        self.slots: dict[int, FakeSlot] = {}
        self.kv: dict[tuple[int, int], int] = {}
        """(block, offset) → digest of the sequence up to there."""
        self.num_steps = 0
        self.num_computed = 0
        self.num_releases = 0
        self.last_step: FakePendingStep
        self.plans: list[StepPlan] = []
        """All there were; the last one only where nothing is verified, for such a runner may run for hours."""
        self._unsampled: FakeForward | None = None
        self.tower = FakeTower()

    def warm_up(self) -> None:
        """Nothing to warm."""

    def tokens_for(self, slot: FakeSlot, num_draft_tokens: int) -> int:
        """How many tokens a sampling with so many draft tokens brings; tests override it."""
        return num_draft_tokens + 1

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> FakeForward:
        assert self._unsampled is None, "forward launched before the previous step was sampled"
        assert plan.step == self.num_steps, "steps are numbered without gaps"
        self.num_steps += 1
        if not self.verify:
            self.plans.clear()
        self.plans.append(plan)
        self._apply(plan)
        self.tower.apply(plan)
        others = plan.encoder or plan.new_requests or plan.freed_images
        assert plan.chunks or others, "an empty step"
        assert len({chunk.slot for chunk in plan.chunks}) == len(plan.chunks), "a slot twice in one step"
        longer = [chunk.count > 1 for chunk in plan.chunks]
        assert longer == sorted(longer), "a chunk of one position behind longer ones"
        assert self.max_batch_tokens is None or plan.num_tokens <= self.max_batch_tokens, "over budget"
        starts = [self._start(chunk) for chunk in plan.chunks]
        if self.verify:
            for chunk, start in zip(plan.chunks, starts, strict=True):
                self._read(self.slots[chunk.slot], start)
        samples = []
        written: set[tuple[int, int]] = set()
        for chunk, start in zip(plan.chunks, starts, strict=True):
            self.tower.check(self.slots[chunk.slot].new.images, start, start + chunk.count)
            written_places, tokens = self._compute(chunk, start)
            assert written.isdisjoint(written_places), "two slots write one position"
            written.update(written_places)
            if chunk.sample:
                samples.append(tokens)
        self._unsampled = FakeForward(plan, samples, *self._about_prompts(plan, starts))
        return self._unsampled

    def draft_tokens(self, forward: object) -> dict[int, list[int]]:
        """None that a grammar would have to follow."""
        return {}

    def release_cache(self) -> None:
        assert self._unsampled is None, "the cache is in use"
        self.kv.clear()
        self.num_releases += 1

    def launch_sampling(self, forward: object, masks: TokenMasks | None = None) -> FakePendingStep:
        launched = self._unsampled
        assert launched is not None
        assert forward is launched
        self._unsampled = None
        logprobs: list[list[TokenLogprobs] | None] = []
        sampling_slots = [self.slots[chunk.slot] for chunk in launched.plan.chunks if chunk.sample]
        if masks is not None:
            assert len(masks.words) == len(masks.indices) == len(set(masks.indices))
            for index, words in zip(masks.indices, masks.words, strict=True):
                launched.samples[index][:] = self._continue(sampling_slots[index], 1, allowed_tokens(words))
        for slot, tokens in zip(sampling_slots, launched.samples, strict=True):
            k = slot.new.sampling.logprobs
            entries = []
            for token in tokens:
                if k is not None:
                    entries.append(fake_logprobs(slot.digests[-1], token, k, self.vocab_size))
                slot.append(token)
            logprobs.append(None if k is None else entries)
        result = StepResult(launched.samples, logprobs, launched.prompt_logprobs, launched.embeddings)
        step = FakePendingStep(result, self.late)
        self.last_step = step
        return step

    def _apply(self, plan: StepPlan) -> None:
        for index in plan.freed_slots:
            del self.slots[index]
        for update in plan.adapter_updates:
            assert all(slot.new.adapter_slot != update.slot for slot in self.slots.values()), "an adapter in use left"
            self.adapters[update.slot] = self.contents.get(update.adapter, update.adapter)
        for new in plan.new_requests:
            assert new.slot not in self.slots, f"slot {new.slot} is in use"
            assert 0 <= new.slot < self.max_num_seqs
            assert new.sampling.seed is not None
            slot = self.slots[new.slot] = FakeSlot(new, self.adapters[new.adapter_slot])
            for token, value in zip(new.token_ids, _inputs(new.token_ids, new.images), strict=True):
                slot.append(token, value)
        for update in plan.block_updates:
            slot = self.slots[update.slot]
            assert update.start == len(slot.blocks), "block tables grow without gaps"
            assert update.blocks, "an update without blocks"
            assert all(0 <= block < self.num_blocks for block in update.blocks)
            slot.blocks += update.blocks
        targets = {copy.target for copy in plan.block_copies}
        assert len(targets) == len(plan.block_copies), "two copies to one block"
        assert targets.isdisjoint(copy.source for copy in plan.block_copies), "a copy of a copy"
        for copy in plan.block_copies:
            for offset in range(BLOCK_SIZE):
                self.kv[copy.target, offset] = self.kv.get((copy.source, offset), GARBAGE)
        for change in plan.token_updates:
            slot = self.slots[change.slot]
            assert 0 < slot.new.num_prompt_tokens <= change.start <= len(slot.token_ids), "not where the output goes on"
            assert change.start + len(change.tokens) >= len(slot.token_ids), "tokens are left over"
            assert change.tokens
            del slot.token_ids[change.start :], slot.digests[change.start :]
            for token in change.tokens:
                slot.append(token)

    def _start(self, chunk: ScheduledChunk) -> int:
        """Where the chunk begins: a slot that samples goes on where its tokens end."""
        slot = self.slots[chunk.slot]
        assert slot.new.request_id == chunk.request_id
        assert chunk.count >= 1 + chunk.num_draft_tokens
        if not chunk.sample:
            end = len(slot.token_ids) + bool(slot.new.pooling)
            assert chunk.start + chunk.count < end, "the last known position is computed without sampling"
            return chunk.start
        assert not slot.new.pooling
        missing = chunk.start + chunk.count - chunk.num_draft_tokens - len(slot.token_ids)
        assert missing >= 0, "a position that has its token is sampled"
        assert missing == 0 or chunk.count == 1 + chunk.num_draft_tokens, "a prefill presumes nothing"
        return chunk.start - missing

    def _read(self, slot: FakeSlot, end: int) -> None:
        """The slot must find its whole context, as left by earlier steps."""
        for position in range(end):
            place = (slot.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE)
            assert self.kv.get(place) == slot.digests[position], (
                f"{slot.new.request_id} does not find its position {position} in block {place[0]}"
            )

    def _compute(self, chunk: ScheduledChunk, start: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Write the chunk's KV; where it went, and the tokens that are sampled."""
        slot, known = self.slots[chunk.slot], chunk.count - chunk.num_draft_tokens
        values = slot.digests[start : start + known]
        tokens = self._continue(slot, self.tokens_for(slot, chunk.num_draft_tokens)) if chunk.sample else []
        assert len(tokens) <= chunk.num_draft_tokens + 1
        accepted = values[-1]
        for token in tokens[
            : chunk.num_draft_tokens
        ]:  # accepted ones; where fewer tokens come the next one was rejected
            accepted = _digest(accepted, token)
            values.append(accepted)
        values += [GARBAGE] * (chunk.count - len(values))
        end = start + chunk.count
        assert end < self.max_model_len + bool(slot.new.pooling), "beyond max_model_len"
        written_places = [(slot.blocks[p // BLOCK_SIZE], p % BLOCK_SIZE) for p in range(start, end)]
        self.kv.update(zip(written_places, values, strict=True))
        self.num_computed += chunk.count
        return written_places, tokens

    def _continue(self, slot: FakeSlot, count: int, allowed: set[int] | None = None) -> list[int]:
        """The slot's next tokens."""
        new, context, tokens = slot.new, slot.digests[-1], list[int]()
        for output in range(
            len(slot.token_ids) - new.num_prompt_tokens, len(slot.token_ids) - new.num_prompt_tokens + count
        ):
            masked = new.masked_until_min_tokens if output < new.sampling.min_tokens else ()
            tokens.append(_sample(context, new.sampling, new.sample_index, self.vocab_size, masked, allowed))
            context = _digest(context, tokens[-1])
        return tokens

    def _about_prompts(
        self, plan: StepPlan, starts: list[int]
    ) -> tuple[dict[int, list[TokenLogprobs]], dict[int, bytes]]:
        """Log-probabilities of the prompts' tokens, and pooled states, by index into the plan's chunks."""
        logprobs: dict[int, list[TokenLogprobs]] = {}
        embeddings: dict[int, bytes] = {}
        for index, (chunk, start) in enumerate(zip(plan.chunks, starts, strict=True)):
            slot = self.slots[chunk.slot]
            new, end = slot.new, start + chunk.count
            k = new.sampling.prompt_logprobs
            last = min(end, new.num_prompt_tokens - 1)
            if k is not None and start < last:
                logprobs[index] = [
                    fake_logprobs(slot.digests[p], slot.token_ids[p + 1], k, self.vocab_size)
                    for p in range(start, last)
                ]
            if new.pooling:
                slot.pooled += chunk.count
                if end == len(slot.token_ids):
                    assert new.pooling == "last" or slot.pooled == end, "the mean lacks positions"
                    embeddings[index] = fake_embedding(slot.digests, new.pooling)
        return logprobs, embeddings
