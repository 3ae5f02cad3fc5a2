"""A runner without a model, for tests of everything above the runner.

It keeps what the real one keeps (a token table and a block table a row) and, in place of KV tensors, what each slot of
each block *stands for*: the digest of all tokens up to and including that position. Before a step computes, it reads
back the whole context of every row through the block table, so a block that was shared wrongly, freed too early or
handed out twice is found at the first read, and a plan that breaks its contract at once.

The next token is a function of all tokens before it and, above temperature 0, of seed and sample index; so any
scheduling must give the tokens that :func:`tokens_alone` gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.plan import NewRow, StepPlan, StepResult
from blade_protocol.state import MemoryPlan

BLOCK_SIZE = 16


def _digest(before: int, token: int) -> int:
    return hash((before, token))


def _draw(context: int, sampling: SamplingParams, sample_index: int, vocab_size: int, masked: Iterable[int]) -> int:
    """The fake model and sampler: the first token that is not masked, counting from a pseudo-random one."""
    key = (context, sampling.seed or 0, sample_index) if sampling.temperature else (context, -1, -1)
    token = hash(key) % vocab_size
    while token in masked:
        token = (token + 1) % vocab_size
    return token


def tokens_alone(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    vocab_size: int,
    eos_token_ids: Iterable[int] = (),
    max_model_len: int = 1 << 30,
    sample_index: int = 0,
) -> tuple[list[int], str, int | None]:
    """(output, finish reason, stop token) of a request that runs alone: no batch, no cache, no scheduler."""
    stop_ids = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_token_ids))
    context = 0
    for token in prompt:
        context = _digest(context, token)
    output: list[int] = []
    while True:
        masked = stop_ids if len(output) < sampling.min_tokens else ()
        token = _draw(context, sampling, sample_index, vocab_size, masked)
        if token in stop_ids:
            return output, "stop", token
        output.append(token)
        context = _digest(context, token)
        if len(output) == sampling.max_tokens or len(prompt) + len(output) >= max_model_len:
            return output, "length", None


@dataclass
class FakeRow:
    """One row of the tables."""

    new: NewRow
    token_ids: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    """``digests[p]`` stands for tokens ``0..p``."""
    blocks: list[int] = field(default_factory=list)

    def append(self, token: int) -> None:
        self.digests.append(_digest(self.digests[-1] if self.digests else 0, token))
        self.token_ids.append(token)


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
        verify: read back the whole context of each row in each step (quadratic; leave out for benchmarks).
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
        )
        self.rows: dict[int, FakeRow] = {}
        self.slots: dict[tuple[int, int], int] = {}
        """(block, offset) → digest of the sequence up to there."""
        self.num_steps = 0
        self.num_computed = 0
        self.pending: list[FakePendingStep] = []
        self.plans: list[StepPlan] = []
        self._unsampled: StepPlan | None = None

    def warm_up(self) -> None:
        """Nothing to warm."""

    def tokens_for(self, row: FakeRow) -> int | None:
        """How many tokens a draw brings this row. None: one, and the host may rely on it; tests override it."""
        return None

    def launch_forward(self, plan: StepPlan) -> StepPlan:
        assert self._unsampled is None, "forward launched before the previous step was sampled"
        assert plan.step == self.num_steps, "steps are numbered without gaps"
        self.num_steps += 1
        self.plans.append(plan)
        self._apply(plan)
        assert plan.rows, "an empty step"
        assert len({scheduled.row for scheduled in plan.rows}) == len(plan.rows), "a row twice in one step"
        assert self.max_batch_tokens is None or plan.num_tokens <= self.max_batch_tokens, "over budget"
        if self.verify:
            self._read(plan)
        self._write(plan)
        self._unsampled = plan
        return plan

    def launch_sampling(self, forward: object) -> FakePendingStep:
        plan = self._unsampled
        assert plan is not None
        assert forward is plan
        self._unsampled = None
        tokens: list[list[int]] = []
        logprobs: list[list[TokenLogprobs] | None] = []
        for scheduled in plan.rows:
            if not scheduled.sample:
                continue
            row = self.rows[scheduled.row]
            end, count = scheduled.start + scheduled.count, self.tokens_for(row)
            if count is None:
                count = 1
                assert end == len(row.token_ids), "a draw for a position that has its token"
            elif end < len(row.token_ids):  # launched when fewer tokens were known: void
                tokens.append([-1] * count)
                logprobs.append(None)
                continue
            drawn = [self._sample(row) for _ in range(count)]
            tokens.append(drawn)
            k = row.new.sampling.logprobs
            logprobs.append(None if k is None else [self._logprobs(token, k) for token in drawn])
        step = FakePendingStep(StepResult(tokens, logprobs), self.late)
        self.pending.append(step)
        return step

    def _apply(self, plan: StepPlan) -> None:
        for index in plan.freed_rows:
            del self.rows[index]
        for new in plan.new_rows:
            assert new.row not in self.rows, f"row {new.row} is in use"
            assert 0 <= new.row < self.max_num_seqs
            assert new.sampling.seed is not None
            row = self.rows[new.row] = FakeRow(new)
            for token in new.token_ids:
                row.append(token)
        for update in plan.block_updates:
            row = self.rows[update.row]
            assert update.start == len(row.blocks), "block tables grow without gaps"
            assert update.blocks, "an update without blocks"
            assert all(0 <= block < self.num_blocks for block in update.blocks)
            row.blocks += update.blocks

    def _read(self, plan: StepPlan) -> None:
        """Every row must find its whole context, as left by earlier steps."""
        for scheduled in plan.rows:
            row = self.rows[scheduled.row]
            for position in range(scheduled.start):
                slot = (row.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE)
                assert self.slots.get(slot) == row.digests[position], (
                    f"{row.new.request_id} does not find its position {position} in block {slot[0]}"
                )

    def _write(self, plan: StepPlan) -> None:
        written: set[tuple[int, int]] = set()
        for scheduled in plan.rows:
            row = self.rows[scheduled.row]
            assert row.new.request_id == scheduled.request_id
            assert scheduled.count >= 1
            end = scheduled.start + scheduled.count
            assert end <= len(row.token_ids), "a position whose token was not drawn"
            assert scheduled.sample or end < len(row.token_ids), "the last known position is computed without a draw"
            assert end < self.max_model_len, "beyond max_model_len"
            for position in range(scheduled.start, end):
                slot = (row.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE)
                assert slot not in written, "two rows write one slot"
                written.add(slot)
                self.slots[slot] = row.digests[position]
            self.num_computed += scheduled.count

    def _sample(self, row: FakeRow) -> int:
        new, output = row.new, len(row.token_ids) - row.new.num_prompt_tokens
        masked = new.masked_until_min_tokens if output < new.sampling.min_tokens else ()
        token = _draw(row.digests[-1], new.sampling, new.sample_index, self.vocab_size, masked)
        row.append(token)
        return token

    def _logprobs(self, token: int, k: int) -> TokenLogprobs:
        return TokenLogprobs(-0.5, tuple((token + i) % self.vocab_size for i in range(k)), (-0.5,) * k)
