"""The loop's one step: schedule, launch, deliver.

One code path for two kinds of device. A GPU works while the host goes on: the next forward pass is launched before the
tokens of the step before have arrived, and the host's work hides behind it; its sampling is launched when they have,
as grammars must see them first. On CPU torch is synchronous: a launched step is done when the call returns, and is
delivered at once, so nothing is scheduled blindly and no token waits.

With pipeline stages several steps are in flight on both kinds of device, one in each stage: a launch is done when the
first stage has computed its part, and the tokens come from the last one later.

A stop that is found one step late costs one discarded token, never a wrong token.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from blade_llm.cache.events import KVChanges
from blade_llm.cache.manager import KVCacheManager
from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.config import EngineConfig
from blade_llm.decoding.build import speculator_of
from blade_llm.decoding.lookahead.drafter import LookaheadDrafter
from blade_llm.decoding.speculator import Speculator
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.engine.adapters import AdapterManager, AdapterReader, LoadedAdapter
from blade_llm.engine.guided_decoding import GuidedDecodingManager
from blade_llm.engine.messages import (
    AdapterReply,
    EngineReady,
    GenerateRequest,
    ListAdapters,
    LoadAdapter,
    RequestError,
    RequestOutput,
    UnloadAdapter,
)
from blade_llm.engine.ranks.adapters import AdapterRanks
from blade_llm.engine.ranks.lost import RankWatch
from blade_llm.lora.memory import host_adapters
from blade_llm.scheduling.budget.encoder import LEAST_PER_TOKEN, EncoderBudget
from blade_llm.scheduling.budget.prefill import CPU_MIN_CHUNK, PrefillBudget
from blade_llm.scheduling.grammar import GrammarCompiler
from blade_llm.scheduling.images.encoding import ImageEncoding
from blade_llm.scheduling.images.limits import EncoderLimits
from blade_llm.scheduling.limits import SchedulerConfig, check_samples, shared_widths
from blade_llm.scheduling.plan import PendingStep, Runner, StepPlan
from blade_llm.scheduling.request import Request, RequestRefusedError
from blade_llm.scheduling.scheduler import Scheduler
from blade_protocol.state import EngineState, GpuMemory, MemoryPlan


@dataclass(slots=True)
class _InFlight:
    plan: StepPlan
    launched_at: float
    pending: PendingStep


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What the engine says about itself and does not change while it runs."""

    model: str
    """The name responses carry."""
    max_model_len: int
    device: str
    dtype: str
    vocab_size: int = 0
    """Tokens that the logits have, for the masks of grammars."""
    hidden_size: int = 0
    """Numbers in a hidden state; 0: not known."""
    computes_on_host: bool = True
    """Whether steps use this process's CPU time, or a GPU's."""
    revision: str = ""
    memory: MemoryPlan | None = None
    timings: dict[str, float] = field(default_factory=dict)
    """Start-up stage → seconds, in order."""
    gpus: Callable[[], tuple[GpuMemory, ...]] = tuple
    """Reads how full the GPUs of this process are."""


class EngineCore:
    """Scheduler and runner, stepped by their owner. Not thread-safe: one thread calls everything.

    Exceptions of the runner propagate out of :meth:`step`; the core is not usable afterwards.

    Args:
        clock: seconds; measures steps for the prefill budget, and how long requests wait for their grammars.
        overlap: launch the next forward pass before the tokens of the last one are known. Tokens are the same without.
        grammars: compiles the grammar specs of requests; without it such requests are refused.
        max_waiting: requests that wait at most, beyond those that have a slot; None: any number.
        allow_priority: a request's priority may be below 0; else it counts as 0.
        speculator: the scheduler's drafter, for the counts in the engine's state.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        info: EngineInfo,
        clock: Callable[[], float] = time.monotonic,
        *,
        overlap: bool = True,
        grammars: GrammarCompiler | None = None,
        max_waiting: int | None = None,
        allow_priority: bool = True,
        speculator: Speculator | LookaheadDrafter | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._speculator = speculator
        self._guided = GuidedDecodingManager(scheduler, grammars, info.vocab_size, clock)
        self.adapters: AdapterManager | None = None
        """The LoRA adapters; None: the engine serves none. Set by :meth:`serve_adapters`."""
        self.ranks: RankWatch | None = None
        """Notices the end of another rank's process, for an owner that sleeps; None: there is no other rank."""
        self.info = info
        self._max_waiting = max_waiting
        self._allow_priority = allow_priority
        self._runner = runner
        self._clock = clock
        self._in_flight: deque[_InFlight] = deque()
        """Launched and not delivered, oldest first."""
        self._ahead = scheduler.config.pipeline_stages if overlap else 0
        """How many may be in flight when the next forward pass is launched."""
        self._delivered_at = clock()

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        runner: Runner,
        info: EngineInfo,
        *,
        num_blocks: int,
        eos_token_ids: Iterable[int] = (),
        grammars: GrammarCompiler | None = None,
        min_prefill_tokens: int = CPU_MIN_CHUNK,
        graph_token_sizes: Sequence[int] = (),
        whole_prompts: bool = False,
        step_seconds: StepSeconds | None = None,
        draft_positions: int = 0,
        images: EncoderLimits | None = None,
    ) -> EngineCore:
        """A core with a scheduler and an empty KV cache of ``num_blocks`` blocks for ``runner``.

        ``step_seconds``: measured times of steps, for speculative decoding; ``draft_positions``: the longest sequence
        of its draft model. ``min_prefill_tokens``, ``graph_token_sizes`` (of mixed steps that are CUDA graphs): see
        :class:`~blade_llm.scheduling.budget.prefill.PrefillBudget`. ``whole_prompts``: see
        :class:`~blade_llm.scheduling.limits.SchedulerConfig`; nothing is cached then. ``images``: bounds of images, of
        a model that takes some.
        """
        beams, samples = shared_widths(config.max_num_seqs) if config.share_slots else (None, None)
        limits = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_beams=beams,
            max_samples=samples,
            max_batch_tokens=config.max_batch_tokens,
            max_model_len=info.max_model_len,
            eos_token_ids=tuple(eos_token_ids),
            generates=config.task == "generate",
            whole_prompts=whole_prompts,
            max_adapters=config.max_loras if config.enable_lora else 0,
            pipeline_stages=config.batches_in_flight,
        )
        caches = config.enable_prompt_cache and not whole_prompts
        cache = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_cache=caches)
        budget = PrefillBudget(min_chunk=min_prefill_tokens, graph_sizes=graph_token_sizes)
        speculator = speculator_of(
            config.speculative,
            step_seconds,
            block_size=BLOCK_SIZE,
            draft_positions=draft_positions,
            on_host=info.computes_on_host,
            deterministic=config.deterministic,
        )
        encoding: ImageEncoding | None = None
        if images is not None:
            pieces = EncoderBudget(least=LEAST_PER_TOKEN * min_prefill_tokens)
            encoding = ImageEncoding(images, config.max_num_seqs, pieces)
        return cls(
            Scheduler(limits, cache, budget, drafter=speculator, images=encoding),
            runner,
            info,
            speculator=speculator,
            grammars=grammars,
            max_waiting=config.max_waiting_requests,
            allow_priority=config.allow_client_priority,
        )

    def serve_adapters(
        self,
        config: EngineConfig,
        reader: AdapterReader,
        loaded: dict[int, LoadedAdapter],
        ranks: AdapterRanks | None = None,
    ) -> None:
        """Serve LoRA adapters, those of ``lora_modules`` from now on.

        ``reader``: reads folders, on threads; ``loaded``: where the runner finds what was read, by number; ``ranks``:
        others that read their parts. Raises ``ModelFilesError`` for one of ``lora_modules`` that cannot be served.
        """
        self.adapters = AdapterManager(
            self.scheduler,
            reader,
            loaded,
            ranks,
            most=host_adapters(config),
            submit=self._submit,
            base_names=config.served_names,
            allowed_roots=config.lora_allowed_roots,
        )
        for name, path in config.lora_modules:
            self.adapters.load_now(name, path)

    def change_adapters(
        self, message: LoadAdapter | UnloadAdapter | ListAdapters, reply: Callable[[AdapterReply], None]
    ) -> None:
        """Load, unload or list adapters; ``reply`` is called now, or when the adapter is loaded."""
        if self.adapters is None:
            error = RequestError(message="this engine serves no adapters; start it with --enable_lora")
            reply(AdapterReply(call_id=message.call_id, error=error))
            return
        match message:
            case LoadAdapter():
                self.adapters.load(message, reply)
            case UnloadAdapter():
                reply(self.adapters.unload(message))
            case ListAdapters():
                reply(AdapterReply(call_id=message.call_id, adapters=self.adapters.infos()))

    def add(self, message: GenerateRequest) -> None:
        """Queue a request: all samples of its prompt.

        Raises:
            ValueError: it can never run as it is; the message says what to change.
        """
        requests = self._samples(message)
        self._check_room(1 if message.sampling.beam_width else len(requests))
        if requests[0].pixels and self.scheduler.images is not None:
            self.scheduler.images.check_room(requests[0].pixels, self._pixels_outside)
        if not message.adapter:
            self._submit(requests)
            return
        if self.adapters is None:
            text = f"model {message.adapter!r} does not exist; this server serves no adapters (--enable_lora)"
            raise RequestRefusedError(RequestError(message=text, kind="unknown_adapter"))
        for request in requests:
            self.scheduler.check(request)
        self.adapters.add(requests, message.adapter, message.adapter_digest)

    def check(self, message: GenerateRequest) -> None:
        """Raises what :meth:`add` raises of a request that can never run."""
        for request in self._samples(message):
            self.scheduler.check(request)

    def _samples(self, message: GenerateRequest) -> list[Request]:
        ids = tuple(message.all_request_ids)
        if len(set(ids)) < len(ids):
            raise RequestRefusedError("request_id and sibling_ids name one request twice")
        if message.pooling and message.sibling_ids:
            raise RequestRefusedError("sibling_ids does not go together with pooling; send one request")
        beams = message.sampling.beam_width != 0
        if message.output_token_ids and (beams or message.pooling or message.sibling_ids):
            raise RequestRefusedError("output_token_ids is for a single answer that is drawn; send none")
        if not beams:
            check_samples(len(ids), self.scheduler.config)
        others = message.sampling
        if others.prompt_logprobs is not None:  # reported once
            others = msgspec.structs.replace(others, prompt_logprobs=None)
        images, pixels = tuple(message.images), {image.digest: image for image in message.pixels}
        return [
            Request(
                request_id=request_id,
                prompt_token_ids=message.prompt_token_ids,
                output_token_ids=message.output_token_ids,
                sampling=others if index else message.sampling,
                sample_index=message.sample_index + index,
                cache_salt=message.cache_salt,
                priority=message.priority if self._allow_priority else max(message.priority, 0),
                pooling=message.pooling,
                second_text=message.second_text,
                output_ids=ids if beams else (),
                images=images,
                pixels=pixels,
            )
            for index, request_id in enumerate(ids[:1] if beams else ids)
        ]

    def _submit(self, requests: list[Request]) -> None:
        """Schedule samples of one prompt, now or when their grammar is compiled. Raises RequestRefusedError."""
        if requests[0].sampling.grammar_spec is None or requests[0].is_beam_search:
            self.scheduler.add(*requests)
        else:
            self._guided.add(requests)

    def _check_room(self, count: int) -> None:
        """Refuse ``count`` requests that exceed those that may wait, as the client may send them elsewhere.

        Raises:
            RequestRefusedError: ``overloaded``.
        """
        if self._max_waiting is None:
            return
        stats, slots = self.scheduler.stats(), self.scheduler.config.max_num_seqs
        waiting = stats.waiting + self._num_outside
        if stats.running + waiting + count > slots + self._max_waiting:
            message = f"busy: {stats.running} requests run and {waiting} wait, no more may; try again in a moment"
            raise RequestRefusedError(RequestError(kind="overloaded", message=message))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests: slots and blocks are free at once, no further output. Unknown ids are ignored."""
        request_ids = list(request_ids)
        self.scheduler.abort(request_ids)
        self._guided.abort(request_ids)
        if self.adapters is not None:
            self.adapters.abort(request_ids)

    @property
    def computes_on_host(self) -> bool:
        """Whether the CPU time of this process shows that a step goes on."""
        return self.info.computes_on_host

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has anything to do; the owner sleeps otherwise."""
        return self.scheduler.has_work or bool(self._in_flight) or self._guided.waiting or self._awaits_adapters

    @property
    def _awaits_adapters(self) -> bool:
        return self.adapters is not None and self.adapters.waiting

    @property
    def _num_outside(self) -> int:
        """Requests that wait for a grammar or an adapter, outside the scheduler."""
        return self._guided.num_waiting + (0 if self.adapters is None else self.adapters.num_waiting)

    @property
    def _pixels_outside(self) -> int:
        """Bytes of the images of these."""
        return self._guided.pixel_bytes + (0 if self.adapters is None else self.adapters.pixel_bytes)

    def state(self, *, epoch: str, sequence: int, draining: bool) -> EngineState:
        """The state for the internal port; the owner counts epochs and sequence numbers."""
        info, stats = self.info, self.scheduler.stats()
        if outside := self._num_outside:
            stats = stats._replace(waiting=stats.waiting + outside)
        return EngineState(
            model=info.model,
            revision=info.revision,
            ready=True,
            draining=draining,
            epoch=epoch,
            sequence=sequence,
            memory=info.memory,
            max_running=self.scheduler.config.max_num_seqs,
            max_waiting=self._max_waiting,
            adapters=() if self.adapters is None else self.adapters.names,
            adapter_digests=() if self.adapters is None else self.adapters.digests,
            adapter_tiers=() if self.adapters is None else self.adapters.tiers,
            max_adapters=0 if self.adapters is None else self.adapters.capacity,
            adapter_counts=None if self.adapters is None else self.adapters.counts,
            speculation=None if self._speculator is None else self._speculator.counts,
            images=None if self.scheduler.images is None else self.scheduler.images.counts.published,
            gpus=info.gpus(),
            **stats._asdict(),
        )

    def release_cache(self) -> None:
        """Forget all prefixes and give back the memory of the KV cache, which is taken again as it is used. Only while
        there is no work."""
        self.scheduler.cache.clear()
        self._runner.release_cache()

    def follow_kv(self) -> bytes:
        """The digests of the prefix cache, whose changes are recorded from now on."""
        return self.scheduler.cache.subscribe()

    @property
    def kv_changed(self) -> bool:
        """Whether :meth:`kv_changes` returns something."""
        return self.scheduler.cache.has_changes

    def kv_changes(self) -> KVChanges | None:
        """What changed in the prefix cache since the last call; None without anything new, or without a subscriber."""
        return self.scheduler.cache.changes()

    def ready(self, state: EngineState) -> EngineReady:
        """The response to an API server's first message."""
        info = self.info
        return EngineReady(
            max_model_len=info.max_model_len,
            device=info.device,
            dtype=info.dtype,
            timings=info.timings,
            state=state,
            hidden_size=info.hidden_size,
        )

    def step(self) -> list[RequestOutput]:
        """Launch one step and deliver what is ready: on CPU its own tokens, on a GPU those of the step before; of
        pipeline stages all that have come through the last one, so that their decodes join the step."""
        outputs = self._guided.admit_compiled() if self._guided.waiting else []
        if self._ahead > 1:
            while self._in_flight and self._in_flight[0].pending.done():
                outputs += self._deliver()
        if self.adapters is not None and self.adapters.waiting:
            outputs += self.adapters.poll()
        plan = self.scheduler.schedule()
        if plan is None:
            if self._in_flight:
                return outputs + self._deliver()
            if self.scheduler.has_work:
                raise RuntimeError("the scheduler has requests but neither plans nor awaits a step")
            if self._guided.waiting and not outputs:
                self._guided.wait()
            elif self.adapters is not None and self.adapters.waiting and not outputs:
                self.adapters.wait()
            return outputs
        launched_at = self._clock()
        forward = self._runner.launch_forward(plan, self._guided.drafts(plan))
        if 0 < self._ahead == len(self._in_flight):
            outputs += self._deliver()
        masks, ended = self._guided.masks(plan, lambda: self._runner.draft_tokens(forward))
        outputs += ended
        pending = self._runner.launch_sampling(forward, masks)
        self._in_flight.append(_InFlight(plan, launched_at, pending))
        # A device that is done this soon does not work while we do: there is nothing to hide behind. Checked only here:
        # when results are found before the next launch, the device is idle, and needs work first.
        if not self._ahead or pending.done():
            while self._in_flight:
                outputs += self._deliver()
        return outputs

    def _deliver(self) -> list[RequestOutput]:
        """Wait for the oldest step in flight and hand its tokens to the scheduler."""
        step = self._in_flight.popleft()
        result = step.pending.result()
        now = self._clock()
        # The device began when the step was launched, or when it was through with the step before.
        began = max(step.launched_at, self._delivered_at)
        host = began - self._delivered_at
        self._delivered_at = now
        return self.scheduler.update(step.plan, result, now - began, host)
