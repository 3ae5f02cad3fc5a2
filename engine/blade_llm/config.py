"""One typed configuration for engine, scheduler and runner; the command line and the offline API both fill it in."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from blade_llm.kv_quant import KVCacheQuant

PACKED_CACHE_BYTES: Final = 32 << 30
"""What servers and offline engines let packed weights take on disk."""

MAX_RANKS: Final = 64
"""Ranks of one engine at most."""

Task = Literal["generate", "embed", "score"]
"""Text, and embeddings besides; embeddings alone; or scores of pairs of texts alone."""


ModelImpl = Literal["auto", "blade", "transformers"]
"""Who computes a model. ``auto``: this engine's layers where the architecture's family is registered, else
transformers' modules."""


MAX_GAMMA: Final = 16
"""Draft tokens of one decode at most: more are hardly ever accepted, and each one takes memory for its logits."""


MAX_LOOK_AHEAD: Final = 127
"""Draft tokens of one decode that branch, at most: with the token before them as many as attention has bits for."""


SpeculativeMethod = Literal["draft", "ngram", "look_ahead", "eagle3", "mtp"]
METHODS_WITH_DRAFT_MODEL: Final = ("draft", "eagle3")
"""Methods whose draft tokens come from a folder of its own."""
METHODS_WITH_HEAD: Final = ("eagle3", "mtp")
"""Methods whose draft tokens come from layers that read the model's hidden states."""


def check_sub_heads(prefix: str, quant: KVCacheQuant, sub_heads: int) -> None:
    """Raise ``ValueError`` for parts of heads that no quantisation has."""
    if sub_heads < 1:
        raise ValueError(f"--{prefix}kv_cache_quant_sub_heads is {sub_heads}; give 1 or more parts of a head")
    if quant == "no_quant" and sub_heads != 1:
        raise ValueError(
            f"--{prefix}kv_cache_quant_sub_heads {sub_heads} divides what --{prefix}kv_cache_quant quantises, which "
            "is nothing; give int8, int4 or another method, or leave it out"
        )


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Speculative decoding: where draft tokens come from, and how many there are."""

    method: SpeculativeMethod
    """``draft``: a small model; ``ngram``: what followed where the text went on as it does now; ``look_ahead``: the
    model itself, at later positions of the same step; ``eagle3``: a draft head that reads the model's hidden states;
    ``mtp``: the multi-token-prediction layers of the model's own checkpoint."""
    gamma: int = 4
    """Draft tokens of one decode at most."""
    disable_above_batch: int | None = None
    """No draft tokens while more requests run; None: the measured cost decides alone."""
    ngram_min_match: int = 2
    """``ngram``: tokens that have to be equal at least."""
    draft_model: str = ""
    """``draft``: the draft model's folder; ``eagle3``: the draft head's."""
    draft_dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """``draft``: the draft model's type; ``auto``: the model's, which draft heads always have."""
    draft_kv_cache_quant: KVCacheQuant = "no_quant"
    """How the KV cache of the draft model or head is quantised."""
    draft_kv_cache_quant_sub_heads: int = 1
    look_ahead_window_size: int = 7
    """``look_ahead``: positions that are guessed at once, the paper's W."""
    look_ahead_gram_size: int = 3
    """``look_ahead``: tokens of an n-gram, the paper's N."""
    guess_set_size: int = 5
    """``look_ahead``: n-grams that are verified in a step, the paper's G."""

    def __post_init__(self) -> None:
        if not 1 <= self.gamma <= MAX_GAMMA:
            raise ValueError(f"gamma is {self.gamma}; give 1 to {MAX_GAMMA} draft tokens (4 is usual)")
        if self.disable_above_batch is not None and self.disable_above_batch < 1:
            raise ValueError("disable_above_batch must be at least 1; give decode_algo normal for no speculation")
        if not 1 <= self.ngram_min_match <= 16:
            raise ValueError(f"ngram_min_match is {self.ngram_min_match}; give 1 to 16 tokens")
        check_sub_heads("draft.", self.draft_kv_cache_quant, self.draft_kv_cache_quant_sub_heads)
        self._check_look_ahead()
        self._check_draft()

    def _check_draft(self) -> None:
        if (self.method in METHODS_WITH_DRAFT_MODEL) != bool(self.draft_model):
            raise ValueError(
                "a draft model goes together with the methods draft (decode_algo sps) and eagle3, and with no other"
            )
        if self.method in METHODS_WITH_HEAD and self.draft_dtype != "auto":
            raise ValueError(
                f"draft_dtype (--draft.dtype) is {self.draft_dtype}; leave it out with the method {self.method}: a "
                "draft head shares the model's embedding and computes in the model's type"
            )

    def _check_look_ahead(self) -> None:
        sizes = self.look_ahead_window_size, self.look_ahead_gram_size, self.guess_set_size
        if min(sizes) < 1 or self.look_ahead_gram_size < 2:
            raise ValueError(
                "look_ahead_window_size, look_ahead_gram_size and guess_set_size are "
                f"{', '.join(map(str, sizes))}; give at least 1, 2 and 1"
            )
        if self.look_ahead_tokens > MAX_LOOK_AHEAD:
            raise ValueError(
                f"look_ahead_window_size {sizes[0]}, look_ahead_gram_size {sizes[1]} and guess_set_size {sizes[2]} "
                f"make (gram - 1) x (window + guesses) - 1 = {self.look_ahead_tokens} more tokens in a step of one "
                f"request; at most {MAX_LOOK_AHEAD} can branch: lower one of them"
            )

    @property
    def most_draft_tokens(self) -> int:
        """Draft tokens of one decode at most, whatever the method."""
        return self.look_ahead_tokens if self.method == "look_ahead" else self.gamma

    @property
    def branch_depth(self) -> int:
        """Tokens that branches of draft tokens go on for; 0: they do not branch."""
        if self.method != "look_ahead":
            return 0
        return max(self.look_ahead_window_size, self.look_ahead_gram_size) + self.look_ahead_gram_size

    @property
    def look_ahead_tokens(self) -> int:
        """``look_ahead``: draft tokens of one decode at most, its window's and guesses."""
        return (self.look_ahead_gram_size - 1) * (self.look_ahead_window_size + self.guess_set_size) - 1


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process needs to start. Crosses the process boundary as msgpack."""

    model: str
    """Model folder, already resolved (downloads happen before)."""
    served_names: tuple[str, ...]
    """Names requests may use; responses carry the first."""
    task: Task = "generate"
    """``embed``: embeddings alone; the output matrix is not loaded. ``score``: scores of pairs, by a cross-encoder."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """``auto``: the checkpoint's type on GPU; on CPU bf16 where the CPU computes it natively, else fp32."""
    max_model_len: int | None = None
    """Prompt + output tokens of one request; the model's own limit when None."""
    max_num_seqs: int = 64
    """Most requests in one step."""
    max_batch_tokens: int = 2048
    """Token budget of one step (``--ragged_flash_max_batch_tokens``)."""
    max_waiting_requests: int | None = None
    """Requests that wait at most, beyond those that have a slot; further ones are refused. None: any number."""
    share_slots: bool = False
    """Leave slots to others: one request may have half as many beams or samples as there are slots
    (:func:`blade_llm.scheduling.limits.shared_widths`)."""
    allow_client_priority: bool = True
    """Requests may have a priority below 0, ahead of all that have none; else it counts as 0."""
    kv_cache_bytes: int | None = None
    """When None: on CPU a quarter of the memory limit, on a GPU what its share leaves."""
    with_visual: bool = True
    """Load a vision tower, where the model has one; False: it serves text alone."""
    encoder_cache_bytes: int = 512 << 20
    """Embeddings of images that are kept on the device; of a model without images none are."""
    max_gpu_memory_utilization: float = 0.9
    """Share of the GPU's memory, above 0 and at most 1, for everything: the KV cache gets what the rest leaves."""
    cuda_graph_batch_sizes: tuple[int, ...] | None = None
    """Decode batch sizes with a CUDA graph; wins over ``cuda_graph_max_batch_size``."""
    cuda_graph_max_batch_size: int | None = None
    """Largest of the default sizes; ``max_num_seqs``, at most 256, when None."""
    cuda_graph_token_sizes: tuple[int, ...] | None = None
    """Tokens of steps with prefill that have a CUDA graph; wins over ``cuda_graph_max_tokens``."""
    cuda_graph_max_tokens: int | None = None
    """Largest of the default sizes, 0 for none; ``max_batch_tokens``, at most 2048, when None."""
    disable_cuda_graph: bool = False
    max_kv_blocks: int | None = None
    """Upper bound on KV blocks, for tests of preemption."""
    enable_prompt_cache: bool = True
    preempt_strategy: Literal["AUTO", "RECOMPUTE"] = "AUTO"
    num_threads: int | None = None
    """torch threads; OMP_NUM_THREADS, else physical cores within the CPU quota, when None."""
    quant: Literal["none", "int8", "int4", "w8a8"] = "none"
    """Quantisation of linear layers while weights are loaded: of weights alone, or of activations, too (``w8a8``)."""
    kv_cache_quant: KVCacheQuant = "no_quant"
    """How the KV cache is quantised."""
    kv_cache_quant_sub_heads: int = 1
    """Parts of each head that have scales of their own."""
    attn_cls: Literal["ragged_flash", "paged"] | None = None
    """Attention: one Triton kernel, or gathered blocks with torch (on CPU the native kernel); None: what the device
    does best."""
    enable_triton_mla: bool = False
    """Latent attention by Triton kernels alone: refused where ``attn_cls`` rules them out; without effect on a CPU."""
    deterministic: bool = False
    """Logits that do not depend on the batch: fixed split sizes, kernels chosen without regard to its size."""
    model_impl: ModelImpl = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    """``dummy``: random weights, for measurements."""
    packed_cache_dir: str | None = None
    """Folder of packed weights; beside the hub's or in the user's cache when None."""
    packed_cache_bytes: int = 0
    """Most bytes of that folder; 0: packed weights are neither read nor kept."""
    tokenizer_dir: str | None = None
    """Folder of ``tokenizer.json``, for guided decoding; the model's folder when None."""
    enable_json_warmup: bool = False
    """Be ready only when guided decoding is; else it gets ready in the background."""
    enable_lora: bool = False
    """Serve LoRA adapters beside the base model."""
    max_loras: int = 8
    """Adapters that one step can use, each in a slot on the device."""
    max_cpu_loras: int | None = None
    """Adapters in host memory, those on the device included; four times ``max_loras`` when None."""
    max_lora_rank: int = 16
    """Largest rank of an adapter."""
    lora_dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Type of adapters' weights; ``auto``: the model's."""
    lora_modules: tuple[tuple[str, str], ...] = ()
    """Names and folders of adapters that are loaded at the start and stay in host memory."""
    lora_allowed_roots: tuple[str, ...] = ()
    """Folders below which requests may name adapters by their path; none: by name alone."""
    speculative: SpeculativeConfig | None = None
    """Speculative decoding; None: none."""
    tensor_parallel_size: int = 1
    """Ranks that compute each layer together, one a device; on CPU all of them share its cores and
    ``kv_cache_bytes``."""
    enable_expert_parallel: bool = False
    """Each rank has some of a mixture-of-experts layer's experts whole, instead of a part of each one's inner
    dimension."""
    pipeline_parallel_size: int = 1
    """Stages that the layers are divided into, each of ``tensor_parallel_size`` ranks."""
    pipeline_micro_batch: int | None = None
    """Steps in flight among which the stages' decodes are divided; as many as stages when None."""
    enable_custom_allreduce: bool = False
    """Ranks on GPUs of one machine add by kernels of our own where that can be, and is faster than NCCL."""
    nnodes: int = 1
    """Machines that the ranks are on, as many on each."""
    node_rank: int = 0
    """This machine's number; that of rank 0 is 0."""
    dist_init_addr: str = ""
    """``host:port`` of machine 0, where the others find it; empty: there is one machine, or it is only planned for."""
    dist_timeout: float = 300.0
    """Seconds that machines wait for each other at the start."""
    revision: str = ""
    extra_eos_token_ids: tuple[int, ...] = ()
    """End-of-sequence ids beyond those of the model's configuration (the tokenizer's ``eos_token``)."""

    def __post_init__(self) -> None:
        if not 0.0 < self.max_gpu_memory_utilization <= 1.0:
            raise ValueError(
                f"max_gpu_memory_utilization is {self.max_gpu_memory_utilization}; give a share above 0 and at most 1"
            )
        if self.cuda_graph_batch_sizes is not None and min(self.cuda_graph_batch_sizes, default=0) < 1:
            raise ValueError("cuda_graph_batch_sizes needs sizes of at least 1; give disable_cuda_graph for none")
        if self.cuda_graph_token_sizes is not None and min(self.cuda_graph_token_sizes, default=0) < 1:
            raise ValueError("cuda_graph_token_sizes needs sizes of at least 1; give cuda_graph_max_tokens 0 for none")
        if self.speculative is not None and self.task != "generate":
            raise ValueError(f"speculative decoding speeds up generating text; leave it out with task {self.task}")
        check_sub_heads("", self.kv_cache_quant, self.kv_cache_quant_sub_heads)
        self._check_ranks()
        self._check_machines()
        if min(self.max_loras, self.max_lora_rank) < 1:
            raise ValueError("max_loras and max_lora_rank must be at least 1")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ValueError(
                f"max_cpu_loras {self.max_cpu_loras} is less than max_loras {self.max_loras}, whose adapters it holds "
                f"too; raise it to at least {self.max_loras}"
            )

    def _check_ranks(self) -> None:
        if not 1 <= self.tensor_parallel_size <= MAX_RANKS:
            raise ValueError(f"tensor_parallel_size is {self.tensor_parallel_size}; give 1 to {MAX_RANKS} ranks")
        if self.enable_expert_parallel and self.tensor_parallel_size == 1:
            raise ValueError(
                "enable_expert_parallel divides experts among the ranks of tensor_parallel_size, which is 1; give 2 or "
                "more, or leave enable_expert_parallel out"
            )
        if self.pipeline_parallel_size < 1 or self.num_ranks > MAX_RANKS:
            raise ValueError(
                f"pipeline_parallel_size is {self.pipeline_parallel_size}, with {self.tensor_parallel_size} ranks in "
                f"each stage; give 1 stage or more, and at most {MAX_RANKS} ranks in all of them"
            )
        if self.pipeline_micro_batch is not None:
            self._check_micro_batch(self.pipeline_micro_batch)
        if (
            self.pipeline_parallel_size > 1
            and self.speculative is not None
            and self.speculative.method in METHODS_WITH_HEAD
        ):
            raise ValueError(
                f"a draft head (decode_algo {self.speculative.method}) does not go together with "
                "pipeline_parallel_size: it reads states that only the last stage has; take decode_algo sps, ngram or "
                "look_ahead, or leave one of them out"
            )

    def _check_micro_batch(self, count: int) -> None:
        stages = self.pipeline_parallel_size
        if stages == 1 and count != 1:
            raise ValueError(f"pipeline_micro_batch is {count}, and there is one stage; leave it out")
        if not stages <= count <= MAX_RANKS:
            raise ValueError(f"pipeline_micro_batch is {count}; give {stages}, one for each stage, to {MAX_RANKS}")

    def _check_machines(self) -> None:
        if self.nnodes < 1 or self.num_ranks % self.nnodes:
            raise ValueError(
                f"nnodes is {self.nnodes}, which does not divide the {self.num_ranks} rank(s) (tensor_parallel_size x "
                "pipeline_parallel_size); each machine has as many: change one of them"
            )
        if not 0 <= self.node_rank < self.nnodes:
            raise ValueError(
                f"node_rank is {self.node_rank}; with nnodes {self.nnodes} machines are 0 to {self.nnodes - 1}"
            )

    @property
    def batches_in_flight(self) -> int:
        """Steps in flight among which the decodes are divided."""
        return self.pipeline_micro_batch or self.pipeline_parallel_size

    @property
    def num_ranks(self) -> int:
        """Ranks of the engine, on all machines."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each machine."""
        return self.num_ranks // self.nnodes

    @property
    def branch_depth(self) -> int:
        """Tokens that branches of draft tokens go on for; 0: there are none."""
        return 0 if self.speculative is None else self.speculative.branch_depth

    @property
    def model_dir(self) -> Path:
        return Path(self.model)
