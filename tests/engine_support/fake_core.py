"""Engine cores around the fake runner, stepped by tests themselves or by the engine process of a test server."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from time import monotonic

import msgspec
from engine_support.fake_runner import FakeRunner
from engine_support.sched_invariants import check_invariants

from blade_llm.cache.manager import KVCacheManager
from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest, RequestOutput
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.scheduling.drafting import Drafter
from blade_llm.scheduling.grammar import GrammarCompiler
from blade_llm.scheduling.images.encoding import ImageEncoding
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.plan import Runner
from blade_llm.scheduling.scheduler import Scheduler

EOS = 2
"""End-of-sequence id of the fake model."""
HIDDEN = 8
"""Size of the fake model's hidden states."""


def make_core(
    runner: FakeRunner,
    *,
    max_batch_tokens: int = 128,
    enable_prompt_cache: bool = True,
    clock: Callable[[], float] = monotonic,
    overlap: bool = True,
    grammars: GrammarCompiler | None = None,
    max_adapters: int = 0,
) -> EngineCore:
    """A core whose limits are those of ``runner``."""
    runner.max_batch_tokens = max_batch_tokens
    return core_of(
        runner,
        num_blocks=runner.num_blocks,
        max_num_seqs=runner.max_num_seqs,
        max_model_len=runner.max_model_len,
        max_batch_tokens=max_batch_tokens,
        enable_prompt_cache=enable_prompt_cache,
        clock=clock,
        overlap=overlap,
        grammars=grammars,
        info=_info(runner, "fake"),
        max_adapters=max_adapters,
    )


def core_of(
    runner: Runner,
    *,
    num_blocks: int,
    enable_prompt_cache: bool = True,
    clock: Callable[[], float] = monotonic,
    overlap: bool = True,
    grammars: GrammarCompiler | None = None,
    info: EngineInfo | None = None,
    max_model_len: int,
    max_batch_tokens: int = 128,
    eos_token_ids: tuple[int, ...] = (EOS,),
    drafter: Drafter | None = None,
    images: ImageEncoding | None = None,
    **limits: int,
) -> EngineCore:
    """A core around any runner; ``limits`` are those of the scheduler."""
    config = SchedulerConfig(
        max_model_len=max_model_len, max_batch_tokens=max_batch_tokens, eos_token_ids=eos_token_ids, **limits
    )
    cache = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_cache=enable_prompt_cache)
    info = info or EngineInfo(model="fake", max_model_len=max_model_len, device="cpu", dtype="float32")
    scheduler = Scheduler(config, cache, drafter=drafter, images=images)
    return EngineCore(scheduler, runner, info, clock, overlap=overlap, grammars=grammars)


def _info(runner: FakeRunner, model: str) -> EngineInfo:
    return EngineInfo(
        model=model,
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype="float32",
        vocab_size=runner.vocab_size,
        memory=runner.memory_plan,
        timings=runner.timings,
    )


def run(core: EngineCore, outputs: dict[str, list[RequestOutput]] | None = None) -> dict[str, list[RequestOutput]]:
    """Step until nothing is left to do, adding to ``outputs`` by request; every invariant holds after each step, and
    all blocks are free in the end."""
    outputs = {} if outputs is None else outputs
    for _ in range(3000):
        if not core.has_work:
            assert core.scheduler.cache.num_free == core.scheduler.cache.num_blocks
            return outputs
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
        check_invariants(core.scheduler)
    raise AssertionError("it does not end")


def fake_embedding(token_ids: list[int], pooling: str) -> list[float]:
    """Not of length 1, and different for other tokens and another pooling."""
    last = token_ids[-1] if pooling == "last" else sum(token_ids) // len(token_ids)
    return [float(last + position) for position in range(HIDDEN)]


def fake_prompt_logprobs(token_ids: list[int], count: int) -> list[TokenLogprobs | None]:
    """The token itself is the second likely one."""
    return [
        None,
        *(TokenLogprobs(-1.0, (token_id + 1, token_id)[:count], (-0.5, -1.0)[:count], 2) for token_id in token_ids[1:]),
    ]


class FakeCore(EngineCore):
    """A core that handles every kind of message that API servers send, around the fake runner.

    Beams, prompt log-probabilities and embeddings are made up here, so that the HTTP side's tests need nothing of the
    engine that computes them: the best beam is what a greedy request would get, the second one's text differs.
    """

    _ready_outputs: list[RequestOutput]
    _first: dict[str, list[TokenLogprobs | None]]

    def add(self, message: GenerateRequest) -> None:
        self._prepare()
        sampling = message.sampling
        if message.pooling:
            values = fake_embedding(message.prompt_token_ids, message.pooling)
            self._ready_outputs.append(
                RequestOutput(
                    request_id=message.request_id,
                    embedding=struct.pack(f"<{HIDDEN}f", *values),
                    finish_reason="stop",
                )
            )
            return
        if sampling.prompt_logprobs is not None:
            found = fake_prompt_logprobs(message.prompt_token_ids, sampling.prompt_logprobs)
            self._first[message.request_id] = found
        alone = msgspec.structs.replace(sampling, beam_width=0, prompt_logprobs=None)
        if not sampling.beam_width:
            super().add(msgspec.structs.replace(message, sampling=alone))
            return
        for index, request_id in enumerate([message.request_id, *message.sibling_ids]):
            own = msgspec.structs.replace(alone, temperature=float(index), seed=index)
            super().add(msgspec.structs.replace(message, request_id=request_id, sibling_ids=[], sampling=own))

    def abort(self, request_ids: Iterable[str]) -> None:
        self._prepare()
        ids = set(request_ids)
        self._ready_outputs = [output for output in self._ready_outputs if output.request_id not in ids]
        super().abort(ids)

    @property
    def has_work(self) -> bool:
        self._prepare()
        return bool(self._ready_outputs) or super().has_work

    def step(self) -> list[RequestOutput]:
        self._prepare()
        outputs, self._ready_outputs = self._ready_outputs, []
        for output in super().step():
            found = self._first.pop(output.request_id, None)
            outputs.append(output if found is None else msgspec.structs.replace(output, prompt_logprobs=found))
        return outputs

    def _prepare(self) -> None:
        if not hasattr(self, "_first"):
            self._ready_outputs, self._first = [], {}
