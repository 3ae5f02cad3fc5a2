"""The runner: carries out step plans with torch, on the GPU where there is one, else on the CPU.

Slots are stable and live on the device (:mod:`blade_llm.runner.tables`), so a step sends only index vectors, and a
token sampled in one step feeds the next without a visit to the host. Nothing here waits for the device except
:meth:`~blade_llm.runner.pending.LaunchedStep.result`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import cast

import msgspec
import torch
from torch import Tensor

from blade_llm.cache.sizing import BLOCK_SIZE, KVCachePlan, default_kv_cache_bytes, raise_kv_cache_bytes
from blade_llm.config import EngineConfig
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.paged_attention import RaggedBatch, most_split_queries
from blade_llm.layers.step import KVCache
from blade_llm.lora.memory import adapter_bytes
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import resolve_dtype
from blade_llm.models.errors import ModelFilesError, NotEnoughMemoryError
from blade_llm.models.model import Model
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.link import StageLink, least_of_ranks
from blade_llm.runner.device import (
    TORCH_DTYPES,
    choose_attention,
    choose_device,
    describe,
    enable_triton_mla,
    require_gpus,
    require_quantization,
)
from blade_llm.runner.draft import DraftRunner, DraftWeights, load_draft
from blade_llm.runner.draft_config import DraftModelConfig, draft_model_config
from blade_llm.runner.forward_pass import ForwardPass, allocate_second_texts
from blade_llm.runner.graphs.decode import CudaGraphs, DecodeGraphs, GraphBackend, SizedGraphs
from blade_llm.runner.graphs.mixed import MixedGraphs
from blade_llm.runner.graphs.sets import StepGraphs, create_graphs, in_capture_order
from blade_llm.runner.inputs import StepInputs, send_inputs
from blade_llm.runner.kv_cache import allocate_kv_cache, copy_blocks, copy_tokens, give_back_kv_cache, rows_of
from blade_llm.runner.kv_quant import warn_of_kv_quant, with_kv_quant
from blade_llm.runner.lora.adapters import RunnerAdapters, targets_of
from blade_llm.runner.lora.step import StepAdapters
from blade_llm.runner.pending import Drafts, LaunchedForward, LaunchedStep
from blade_llm.runner.prompt_outputs import PromptOutputResults, compute_prompt_outputs
from blade_llm.runner.startup.autotune import autotune_linear, autotune_threads
from blade_llm.runner.startup.gpu_profile import capture_all, out_of_memory, profile_gpu
from blade_llm.runner.startup.host_memory import give_back_free_memory
from blade_llm.runner.startup.kernels import warm_all
from blade_llm.runner.startup.memory_plan import activation_peak, memory_plan, plan_kv_cache
from blade_llm.runner.startup.numa import rank_cores
from blade_llm.runner.startup.step_times import measure_steps
from blade_llm.runner.startup.threads import requested_threads
from blade_llm.runner.startup.warm_up import warm_up
from blade_llm.runner.supported import assert_supported
from blade_llm.runner.tables import SlotTables
from blade_llm.runner.vision.images import StepImages
from blade_llm.runner.vision.memory import encoder_bytes
from blade_llm.runner.vision.start import load_images
from blade_llm.sampling.masks import DraftMasks, TokenMasks
from blade_llm.sampling.ranks import sample_by_ranks
from blade_llm.sampling.sampler import Sampler
from blade_llm.scheduling.plan import PendingForward, StepPlan
from blade_llm.spec.branching import branching_problem
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.served_length import for_length
from blade_llm.weights.loader import load_model
from blade_llm.weights.packed_cache.folder import packed_cache

logger = logging.getLogger(__name__)


class TorchRunner:
    """Runs one model on one device; implements :class:`blade_llm.scheduling.plan.Runner`.

    Attributes: ``num_blocks``, ``max_model_len``, ``memory_plan``, and ``timings``, seconds by phase of the start.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        graph_backend: Callable[[], GraphBackend] | None = None,
        group: RankGroup | None = None,
        link: StageLink | None = None,
    ) -> None:
        """Load the weights and allocate the KV cache. ``graph_backend``: :class:`CudaGraphs` on a GPU when not given.
        ``group``: the ranks that compute the model together, of which ``model_config`` is this one's; ``link``: to the
        pipeline stages before and after.

        Raises :class:`~blade_llm.models.errors.ModelFilesError`,
        :class:`~blade_llm.models.errors.NotEnoughMemoryError`, and ``ValueError`` for a ``max_model_len`` beyond the
        model's own.
        """
        self.config = config
        if isinstance(model_config.decoder, DecoderSpec):
            length = config.max_model_len or model_config.max_position_embeddings
            model_config = replace(model_config, decoder=for_length(model_config.decoder, length))
        if problem := branching_problem(model_config.decoder, config.branch_depth):
            raise ModelFilesError(problem)
        warn_of_kv_quant(model_config, config.kv_cache_quant)
        self.model_config = with_kv_quant(model_config, config.kv_cache_quant, config.kv_cache_quant_sub_heads)
        self.timings: dict[str, float] = {}
        self.draft: DraftRunner | None = None
        """The draft model of speculative decoding."""
        self._draft_weights: DraftWeights | None = None
        self.step_seconds: StepSeconds | None = None
        """Measured times of steps, where decoding is speculative."""
        self.group, self.link = group, link
        before = 0 if link is None else link.stage * config.tensor_parallel_size
        self.device = choose_device(before + (0 if group is None else group.rank))
        quantized, on_gpu = config.quant != "none" or model_config.tensors.quantized, self.device.type != "cpu"
        self.dtype_name = resolve_dtype(config.dtype, model_config.dtype, on_gpu=on_gpu, quantized=quantized)
        require_quantization(config.quant, self.device, self.dtype_name, model_config.tensors)
        self.dtype = TORCH_DTYPES[self.dtype_name]
        self.attn_cls = choose_attention(config.attn_cls, self.device)
        if config.enable_custom_allreduce:
            require_gpus(self.device)
        if config.enable_triton_mla:
            logger.info("%s", enable_triton_mla(model_config.kv.value_part > 0, self.attn_cls, self.device))
        self._torch_attention = self.attn_cls == "paged" and self.device.type == "cuda"
        self._graph_backend = graph_backend
        self.adapters: RunnerAdapters | None = None
        if config.enable_lora:
            of_adapters = self.dtype if config.lora_dtype == "auto" else TORCH_DTYPES[config.lora_dtype]
            self.adapters = RunnerAdapters(targets_of(config, model_config), config, of_adapters, self.device)
        if self.device.type == "cpu":
            cores = rank_cores(config.ranks_per_node)
            torch.set_num_threads(requested_threads(config.num_threads) or cores)
            start = time.perf_counter()
            backend_of(torch.empty(0))  # loads the native operators; compiles them at a user's very first start
            self.timings["operators"] = time.perf_counter() - start
        elif graph_backend is None and link is None and self.attn_cls == "ragged_flash":
            self._graph_backend = CudaGraphs
        with torch.inference_mode():
            kv, peak, spare = self._start_on_cpu() if self.device.type == "cpu" else self._start_on_gpu()
            blocks, length = (least_of_ranks(group, link, own) for own in (kv.blocks, kv.max_model_len))
            kv = kv.at_most(blocks, length)
            try:
                self.attach(kv)
            except torch.OutOfMemoryError as error:
                raise out_of_memory("the KV cache", self.config, error) from error
        self.memory_plan = memory_plan(
            kv,
            weights=self.model.nbytes + (0 if self.images is None else self.images.nbytes),
            activation_peak=peak,
            encoder=encoder_bytes(config, model_config, self.dtype_name, kv.max_model_len),
            lora=adapter_bytes(config, model_config, self.dtype_name, on_gpu=on_gpu),
            draft=0 if self.draft is None else self.draft.nbytes,
            device=self.device.type,
            spare=spare,
        )

    @torch.inference_mode()
    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> LaunchedForward:
        """See :class:`~blade_llm.scheduling.plan.Runner`."""
        assert_supported(plan, self.adapters is not None, self.link is not None, self.images is not None)
        try:
            images = None if self.images is None else self.images.apply(plan)
            with_adapters = None if self.adapter_graphs is None else self.adapter_graphs.mixed
            graphs = self.mixed_graphs, self.adapters, with_adapters
            inputs = send_inputs(plan, self.tables, *graphs, launched=images is not None)
            if self._second_texts is not None:
                for new in plan.new_requests:
                    self._second_texts[new.slot] = new.second_text or self.max_model_len
            if inputs.trees.copies is not None:
                copy_tokens(self._kv_cache, *inputs.trees.copies)
            if inputs.copies is not None:
                copy_blocks(self._kv_cache, *inputs.copies, None if self._states is None else self._states.cache)
            if not plan.chunks:  # images alone
                return LaunchedForward(inputs.sampled, None)
            draft_invalid = self._make_drafts(plan, draft_masks)
            hidden = self._hidden(inputs, images)
            num_sampled = len(inputs.sampled.slots)
            logits = self.model.own_logits(hidden[:num_sampled]) if num_sampled and self.model_config.ends else None
            prompt_results = self._prompt_results(inputs, hidden[num_sampled:])
            tables, guesses = self.tables.token_ids, inputs.trees.guesses
            drafts = Drafts.of(inputs.draft_counts, inputs.sampled, tables, draft_invalid, guesses)
            return LaunchedForward(inputs.sampled, logits, prompt_results, drafts, inputs.trees.written_slots)
        except torch.OutOfMemoryError as error:
            raise out_of_memory("a step", self.config, error) from error

    @torch.inference_mode()
    def launch_sampling(self, forward: PendingForward, masks: TokenMasks | None = None) -> LaunchedStep:
        """Launch the sampling, which writes each token into its slot's table at its position."""
        launched = cast(LaunchedForward, forward)
        if launched.logits is None:
            return LaunchedStep(None, self.device, launched.prompt_results)
        slots, of_ranks = launched.sampled, (self.group, self.model_config.vocab_size)
        try:
            sampled = sample_by_ranks(self._sampler, *of_ranks, launched.logits, slots, masks)
        except torch.OutOfMemoryError as error:
            raise out_of_memory("a step", self.config, error) from error
        written = slots.slot_index if launched.written_slots is None else launched.written_slots
        self.tables.token_ids[written, slots.position_index] = sampled.tokens.to(torch.int32)
        return LaunchedStep(sampled, self.device, launched.prompt_results, launched.drafts)

    def release_cache(self) -> None:
        """See :class:`~blade_llm.scheduling.plan.Runner`. A GPU's memory is nobody else's: it stays."""
        if self.device.type == "cpu":
            give_back_kv_cache(self._kv_cache, None if self._states is None else self._states.cache)
            if self.draft is not None:
                give_back_kv_cache(self.draft.kv_cache)

    def draft_tokens(self, forward: PendingForward) -> dict[int, list[int]]:
        """The draft tokens of a launched forward pass, by slot."""
        launched = cast(LaunchedForward, forward)
        return {} if launched.drafts is None else launched.drafts.by_slot(launched.sampled.slots)

    def _make_drafts(self, plan: StepPlan, masks: DraftMasks | None) -> Tensor | None:
        """Let the draft model write its draft tokens into the tables; whether its logits are no numbers, [] bool."""
        return self.draft.launch(plan, masks) if plan.draft_chunks and self.draft is not None else None

    def warm_up(self) -> None:
        """Compile, load and try out all that a request may need, and capture the graphs, before the first one comes."""
        start = time.perf_counter()
        with torch.inference_mode():
            autotune_linear(self, self.group, self.link)  # first: what is warmed up is then what will run
            warm_up(self)
            autotune_threads(self)
        self.timings["warm-up"] = time.perf_counter() - start
        if self.all_graphs:
            start = time.perf_counter()
            with torch.inference_mode():
                self._capture()
            self.timings["graphs"] = time.perf_counter() - start
        if self.config.speculative is not None:
            start = time.perf_counter()
            with torch.inference_mode():
                self.step_seconds = measure_steps(self, self.config.speculative, self.group, self.link)
            self.timings["speculation"] = time.perf_counter() - start

    @property
    def description(self) -> str:
        """The device in words; final after :meth:`warm_up`."""
        return describe(self.device, self.attn_cls)

    def attach(self, kv: KVCachePlan) -> None:
        """Allocate the KV cache, and tables of the slots to go with it."""
        config = self.config
        self.num_blocks, self.max_model_len = kv.blocks, kv.max_model_len
        self._kv_cache: KVCache = allocate_kv_cache(
            self.model_config.kv, kv.blocks, BLOCK_SIZE, self.device, self.dtype
        )
        self.tables = SlotTables(
            config.max_num_seqs, kv.max_model_len, kv.blocks_of(kv.max_model_len), kv.blocks, self.device
        )
        rows = rows_of(self.model_config.kv, self.dtype)
        if self._graph_backend is not None and self._kv_cache:
            self.tables.most_split_queries = most_split_queries(self._kv_cache[0][0], self.model_config.num_heads, rows)
        self._sampler = Sampler(self.tables.sampling, self.tables.token_ids)
        self._query_starts = torch.arange(config.max_num_seqs + 1, device=self.device)
        self._second_texts = allocate_second_texts(self.model_config, self.tables)
        drafting = self._draft_weights
        self._states = None if drafting is None else drafting.allocate_states(kv.blocks, self.device)
        of_slots, how = (self._kv_cache, self.tables), (config.deterministic, self._torch_attention)
        axes = None if self.images is None else self.images.attach(self.tables.token_ids)
        self._forward_pass = ForwardPass(
            self.model_config, *of_slots, *how, self._second_texts, states=self._states, kv_rows=rows, axes=axes
        )
        encodes = self.model_config.decoder.bidirectional  # one sequence after another, of any lengths: no graph
        backend: GraphBackend | None = None
        if self._graph_backend is not None and not config.disable_cuda_graph and not encodes:
            backend = self._graph_backend()
        if drafting is not None:
            self.draft = DraftRunner(
                drafting,
                self.tables,
                self._sampler,
                num_blocks=kv.blocks,
                vocab_size=self.model_config.vocab_size,
                config=config,
                states=self._states,
                graphs=backend,
            )
        self.plain_graphs: StepGraphs | None = None
        self.adapter_graphs: StepGraphs | None = None
        """Those of steps with adapters."""
        if backend is not None:
            self._create_graphs(backend)

    def _create_graphs(self, backend: GraphBackend) -> None:
        where = self.tables.padding_slot, self.device
        self.plain_graphs = create_graphs(self.config, backend, self._decode, self._forward, *where)
        adapters = None if self.adapters is None else self.adapters.on_device
        if adapters is not None:
            decode, forward = partial(self._decode, adapters=adapters), partial(self._forward, adapters=adapters)
            self.adapter_graphs = create_graphs(self.config, backend, decode, forward, *where, " with adapters")

    @property
    def graphs(self) -> DecodeGraphs | None:
        """Those of decodes without adapters."""
        return None if self.plain_graphs is None else self.plain_graphs.decodes

    @property
    def mixed_graphs(self) -> MixedGraphs | None:
        """Those of mixed steps without adapters."""
        return None if self.plain_graphs is None else self.plain_graphs.mixed

    @property
    def all_graphs(self) -> list[SizedGraphs]:
        """In the order in which they are to be captured: what needs most memory first, for the others to fit into."""
        of_draft = None if self.draft is None else self.draft.graphs
        sets = (self.adapter_graphs, self.plain_graphs, of_draft)
        return in_capture_order([each for each in sets if each is not None])

    def warm_kernels(self) -> None:
        """Compile every variant of every operator's kernel that this model can meet; none on CPU."""
        if self.device.type != "cpu":
            where = self.tables, self._kv_cache, self.dtype, self._torch_attention
            warm_all(self.model, self.model_config, self.config, *where)

    def detach(self) -> None:
        """Give back what :meth:`attach` allocated."""
        del self._kv_cache, self.tables, self._sampler, self._query_starts, self.plain_graphs, self.adapter_graphs
        del self._forward_pass, self._states
        self.draft = None

    def _hidden(self, inputs: StepInputs, images: StepImages | None) -> Tensor:
        """Launch the model; hidden states of the tokens to sample after, and then of those that prompt outputs need."""
        batch, selected, adapters = inputs.batch, inputs.selected, inputs.adapters
        graphs = (self.plain_graphs if adapters is None else self.adapter_graphs) if images is None else None
        if graphs is not None and graphs.mixed is not None and inputs.mixed is not None:
            return graphs.mixed.compute(*inputs.mixed)
        if graphs is not None and inputs.decodes_only and graphs.decodes.size_for(inputs.num_tokens) is not None:
            hidden = graphs.decodes.decode(batch.slots, inputs.starts)
            return hidden if selected is None else hidden.index_select(0, selected)
        return self._forward_pass(self.model, batch, inputs.starts, inputs.num_tokens, selected, adapters, images)

    def _prompt_results(self, inputs: StepInputs, hidden: Tensor) -> PromptOutputResults | None:
        """The prompt outputs of the step; ``hidden``: [their positions, hidden]."""
        batch, targets, model = inputs.prompt_outputs, inputs.targets, self.model
        if batch is None or targets is None or not self.model_config.ends:
            return None
        next_tokens = self.tables.token_ids.view(-1).index_select(0, targets)
        return compute_prompt_outputs(batch, hidden, next_tokens, model.logits, model.classifier)

    def _decode(self, slots: Tensor, starts: Tensor, adapters: StepAdapters | None = None) -> Tensor:
        """A decode step that depends on nothing but device memory, as graphs need it: the lengths that the host sees
        are an upper bound."""
        count = len(slots)
        batch = RaggedBatch(
            slots, self._query_starts[: count + 1], starts + 1, [1] * count, [self.max_model_len] * count
        )
        return self._forward(batch, starts, count, None, adapters)

    def _forward(
        self,
        batch: RaggedBatch,
        starts: Tensor,
        num_tokens: int,
        selected: Tensor | None = None,
        adapters: StepAdapters | None = None,
    ) -> Tensor:
        return self._forward_pass(self.model, batch, starts, num_tokens, selected, adapters)

    def _start_on_cpu(self) -> tuple[KVCachePlan, int, None]:
        """The plan, and a step's bytes. It comes first: what does not fit is known before the weights are read."""
        config, model_config = self.config, self.model_config
        of_all = config.kv_cache_bytes if config.kv_cache_bytes is not None else default_kv_cache_bytes()
        kv = plan_kv_cache(
            config,
            model_config,
            self.dtype_name,
            int(of_all * model_config.kv_share),
            lambda needed: raise_kv_cache_bytes(math.ceil(needed / model_config.kv_share)),
            draft=self._draft_config,
        )
        self.model = self._load(kv.max_model_len)
        self._load_draft(kv.max_model_len)
        return kv, activation_peak(config, model_config, self.dtype_name, self._draft_config), None

    def _start_on_gpu(self) -> tuple[KVCachePlan, int, int]:
        """The same, and bytes to spare. The cache gets what weights, graphs and a full step leave of our share."""
        config, model_config = self.config, self.model_config
        free_at_start, _ = torch.cuda.mem_get_info(self.device)
        length = config.max_model_len or model_config.max_position_embeddings
        try:
            self.model = self._load(length)
            self._load_draft(length)
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemoryError(
                f"the weights do not fit into the {free_at_start} bytes that are free on the GPU; take a smaller model "
                f"or a larger GPU, or free memory that other processes hold ({error})"
            ) from error
        start = time.perf_counter()
        with self.adapters.in_all_steps() if self.adapters is not None else nullcontext():
            memory = profile_gpu(self, free_at_start, length)
        self.timings["profile"] = time.perf_counter() - start
        later = encoder_bytes(config, model_config, self.dtype_name, length)
        if self.adapters is not None and not self.adapters.allocated_bytes:  # slots are filled later
            later += adapter_bytes(config, model_config, self.dtype_name, on_gpu=True)
        memory = replace(memory, lasting=memory.lasting + later, free=memory.free - later)
        kv = plan_kv_cache(
            config,
            model_config,
            self.dtype_name,
            memory.kv_cache_for(config.kv_cache_bytes),
            memory.enlarge,
            draft=self._draft_config,
        )
        return kv, memory.activation_peak, memory.spare

    def _load(self, max_positions: int) -> Model:
        start = time.perf_counter()
        model = load_model(
            self.config.model_dir,
            self.model_config,
            load_format=self.config.load_format,
            max_positions=max_positions,
            device=self.device,
            dtype=self.dtype,
            quant=self.config.quant,
            deterministic=self.config.deterministic,
            packed_cache=packed_cache(self.config.packed_cache_dir, self.config.packed_cache_bytes),
            wrap=None if self.adapters is None else self.adapters.wrap,
            group=self.group,
            link=self.link,
        )
        self.images = load_images(self.config, self.model_config, self.device, self.dtype)
        give_back_free_memory()
        self.timings["weights"] = time.perf_counter() - start
        return model

    @property
    def _draft_config(self) -> DraftModelConfig | None:
        """The draft model's configuration, read from its files."""
        return draft_model_config(self.config, self.model_config, self.dtype_name)

    def _load_draft(self, max_positions: int) -> None:
        if (draft := self._draft_config) is not None:
            start = time.perf_counter()
            self._draft_weights = load_draft(draft, self.config, self.device, max_positions, self.model)
            self.timings["draft"] = time.perf_counter() - start

    def _capture(self) -> None:
        self.memory_plan = msgspec.structs.replace(self.memory_plan, graphs=capture_all(self.all_graphs, self.device))
