"""All flags of ``blade_llm_server``: BladeLLM's, and a few of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from blade_llm.api.common.comments import INTERVAL_SECONDS
from blade_llm.api.common.limits import MAX_BODY_BYTES
from blade_llm.api.common.pooling import Pooling
from blade_llm.api.common.response_store import DEFAULT_BYTES, DEFAULT_SECONDS
from blade_llm.api.metrics.names import Aliases
from blade_llm.cli.flags import (
    Flag,
    boolean,
    byte_size,
    collector,
    count,
    json_object,
    named_path,
    origins,
    port,
    positive,
    ratio,
    seconds,
    share,
    tokens,
)
from blade_llm.cli.images.flags import IMAGE_FLAGS
from blade_llm.cli.presets import PRESETS
from blade_llm.config import PACKED_CACHE_BYTES, ModelImpl, Task
from blade_llm.kv_quant import KVCacheQuant
from blade_llm.models.dtypes import DTYPE_ALIASES
from blade_llm.text.reasoning import REASONING_PARSERS
from blade_llm.text.tool_parsers import NO_PARSER, TOOL_PARSERS
from blade_protocol import ports
from blade_telemetry.logs import FORMATS

_DTYPES: Final = ("auto", "half", "float16", "bfloat16", "float", "float32")
_ATTENTION: Final = ("paged", "ragged_flash")


def _off(name: str, help: str) -> Flag:
    """A switch of a feature that does not exist yet."""
    return Flag(name=name, help=help, kind=boolean, default=False, accepts=(False,))


def _later(name: str, help: str, **options: object) -> Flag:
    """A value of a feature that does not exist yet."""
    return Flag(name=name, help=help, accepts=(), **options)  # type: ignore[arg-type]


PRESET: Final = Flag(
    name="preset",
    help="flags for a use, as docs/tuning.md lists them; those that are given win",
    choices=tuple(PRESETS),
)
_MODEL = (
    Flag(name="model", help="model folder, or a Hugging Face hub id like ORG/NAME", required=True, metavar="DIR"),
    Flag(name="revision", help="branch, tag or commit of a hub model, as ORG/NAME@REVISION"),
    Flag(name="served_model_name", help="names requests may use (default: the model folder's name)", many=True),
    Flag(name="tokenizer_dir", help="folder of the tokenizer (default: the model folder)", metavar="DIR"),
    Flag(
        name="chat_template",
        help="jinja file, or a template itself, that replaces the model's chat template",
        metavar="FILE",
    ),
    Flag(
        name="default_chat_template_kwargs",
        help='arguments for the chat template where a request does not give them, like {"enable_thinking": false}',
        kind=json_object,
    ),
    Flag(
        name="task",
        help="generate: text, and embeddings too; embed: embeddings alone; score: scores of pairs of texts alone",
        default="generate",
        choices=get_args(Task),
    ),
    Flag(
        name="pooling",
        help="how hidden states become an embedding: the last token's, their mean, or the first token's, cls "
        "(default: as the model's 1_Pooling/config.json says, else last, of an encoder cls)",
        choices=get_args(Pooling),
    ),
    Flag(
        name="tool_call_parser",
        help="how the model writes tool calls; none: they stay text (default: what the chat template shows)",
        choices=(NO_PARSER, *TOOL_PARSERS),
    ),
    Flag(
        name="reasoning_parser",
        help="how the model writes its reasoning; none: it stays text (default: what the chat template shows)",
        choices=(NO_PARSER, *REASONING_PARSERS),
    ),
    Flag(name="dtype", help="type of weights and activations", default="auto", choices=_DTYPES),
    Flag(name="max_model_len", help="most tokens of prompt and answer together (default: the model's)", kind=tokens),
    Flag(name="load_format", help="dummy: random weights, for measurements", default="auto", choices=("auto", "dummy")),
    Flag(
        name="model_impl",
        help="who computes the model: this engine's layers, or transformers' own modules; auto: those where this "
        "engine does not know the architecture",
        default="auto",
        choices=get_args(ModelImpl),
    ),
    Flag(
        name="quant",
        help="quantise the weights of linear layers while loading; w8a8: to int8, and activations token by token, too",
        default="none",
        choices=("none", "int8", "int4", "w8a8"),
    ),
    Flag(
        name="packed_cache_dir",
        help="folder where weights are kept as they are packed for the CPU, for later starts and other replicas "
        "(default: $HF_HOME/bladellm/packed, else ~/.cache/bladellm/packed)",
        metavar="DIR",
    ),
    Flag(
        name="packed_cache_bytes",
        help="most bytes of that folder; 0: pack at every start",
        kind=byte_size,
        default=PACKED_CACHE_BYTES,
    ),
    Flag(
        name="deterministic",
        help="the same tokens whatever else is in the batch, at some cost",
        kind=boolean,
        default=False,
    ),
    Flag(
        name="attn_cls",
        help="attention: ragged_flash, one Triton kernel (default on a GPU); paged, gathered blocks (default on CPU)",
        choices=_ATTENTION,
    ),
    Flag(
        name="tokenizer_special_tokens",
        help="tokens of the vocabulary to treat as special, too, or NAME=TOKEN like eos_token=<|im_end|>",
        many=True,
        metavar="TOKEN",
    ),
    Flag(
        name="enable_triton_mla",
        help="multi-head latent attention (DeepSeek) by Triton kernels alone, which a GPU computes it with anyway but "
        "for --attn_cls paged; without effect on a CPU",
        kind=boolean,
        default=False,
    ),
)
_SERVICE = (
    Flag(name="host", help="address to listen on; 0.0.0.0: all (default: $BLADE_HOST, else 127.0.0.1)"),
    Flag(name="allowed_hosts", help="further names that requests may call this server by; *: any (default: on a "
         "loopback address localhost and --host, else any)", many=True),
    Flag(name="allowed_origins", help="web pages that may use the public port from a browser (CORS), like "
         "https://chat.example.com; *: any (default: none)", kind=origins, many=True),
    Flag(name="port", help="public port; 0: any free one", kind=port, default=ports.ENGINE_PORT),
    Flag(name="internal_port", help="port for router and operator (default: public port + 1000)", kind=port),
    Flag(name="api_server_count", help="API-server processes on the public port", kind=positive, default=1),
    Flag(name="max_connections", help="most clients' connections of each port and API-server process", kind=positive,
         default=4096),
    Flag(name="max_body_bytes", help="largest request body, e.g. 16MiB", kind=byte_size, default=MAX_BODY_BYTES),
    Flag(name="strict_fields", help="refuse requests with a field that nobody knows, with the nearest known name; else "
         "such fields are left out and listed in the header x-blade-ignored", kind=boolean, default=False),
    Flag(name="metric_aliases", help="expose metrics by these names, too, for dashboards made for them",
         default="none", choices=get_args(Aliases)),
    Flag(name="stream_comment_interval", help="seconds of silence after which a stream, or the wait for one, gets a "
         "comment (': keep-alive'), so that nothing between drops the connection; 0: none", kind=seconds,
         default=INTERVAL_SECONDS),
    Flag(name="enable_tokenizer_info_endpoint", help="serve GET /tokenizer_info: the tokenizer's configuration and the "
         "chat template", kind=boolean, default=False),
    Flag(name="response_store_bytes", help="most bytes of responses that are kept for previous_response_id; 0: none",
         kind=byte_size, default=DEFAULT_BYTES),
    Flag(name="response_store_time", help="how long a response is kept after its last use", kind=seconds,
         default=DEFAULT_SECONDS),
    Flag(name="worker_socket_path", help="folder for the processes' sockets (default: temporary)", metavar="DIR"),
    Flag(name="log_level", help="least severe messages to log", default="INFO",
         choices=("DEBUG", "INFO", "WARNING", "ERROR")),
    Flag(name="log_format", help="json: one object a line (default: $BLADE_LOG_FORMAT, else text)", choices=FORMATS),
    Flag(name="otlp_traces_endpoint", help="send traces to this OpenTelemetry collector, as OTLP over HTTP (default: "
         "$OTEL_EXPORTER_OTLP_ENDPOINT, else none); without a path, /v1/traces is used", kind=collector),
    Flag(name="trace_sampling", help="share of requests that are traced, of those whose client or router has not "
         "decided it (default: $OTEL_TRACES_SAMPLER, else 1: all)", kind=ratio),
    Flag(name="log_payloads", help="log prompts and outputs, without what looks like a secret, to this file or to "
         "stdout (default: nothing of them is kept)", metavar="FILE"),
    Flag(name="payload_sampling", help="share of requests whose prompts and outputs --log_payloads has", kind=ratio,
         default=1.0),
    Flag(name="payload_redact", help="further regular expressions of what --log_payloads leaves out, beside keys, "
         "tokens, e-mail addresses and long numbers", many=True),
    Flag(name="payload_record_bytes", help="most characters of the prompts, and of the outputs, of one request in "
         "--log_payloads", kind=byte_size, default=65_536),
    Flag(name="payload_file_bytes", help="size at which the file of --log_payloads is renamed and begun anew; four "
         "older ones are kept", kind=byte_size, default=64 << 20),
    Flag(name="drain_timeout", help="how long running requests get after SIGTERM", kind=seconds, default=30.0),
    Flag(name="live_timeout", help="how long no progress, with work present, passes for alive", kind=seconds,
         default=60.0),
    Flag(name="metric_exporters", help="where metrics go", many=True, default=["prometheus"],
         accepts=(["prometheus"],)),
    Flag(name="max_queue_time", help="seconds a request may wait; 0: for ever", kind=int, default=0, accepts=(0,)),
    _off("disable_frontend_multiprocessing", "API server and engine in one process"),
)  # fmt: skip
_MEMORY = (
    Flag(name="max_num_seqs", help="most requests in one step", kind=positive, default=64),
    Flag(name="max_waiting_requests", help="most requests that wait for a slot; further ones are refused (503)",
         kind=positive, default=2048),
    Flag(name="allow_client_priority", help="let requests have a priority below 0, ahead of those without one; else it "
         "counts as 0", kind=boolean, default=False),
    Flag(name="ragged_flash_max_batch_tokens", help="most tokens in one step", kind=tokens, default=2048),
    Flag(name="kv_cache_bytes", help="KV cache size, e.g. 1GiB (default on CPU: a quarter of the memory)",
         kind=byte_size),
    Flag(name="max_kv_blocks", help="upper bound on KV blocks of 16 tokens", kind=positive),
    Flag(name="num_threads", help="CPU threads (default: OMP_NUM_THREADS, else the usable cores; 1 for a tiny model)",
         kind=positive),
    Flag(name="preempt_strategy", help="what happens to a request's KV cache when memory runs short", default="AUTO",
         choices=("AUTO", "RECOMPUTE", "SWAP"), accepts=("AUTO", "RECOMPUTE")),
    Flag(name="max_gpu_memory_utilization", help="share of the GPU's memory for everything, above 0 and at most 1",
         kind=share, default=0.9),
    Flag(name="decoding_parallelism", help="decoding streams", kind=positive, default=1, accepts=(1,)),
)  # fmt: skip
_PREFIX_CACHE = (
    Flag(name="disable_prompt_cache", help="compute every prompt anew", kind=boolean, default=False),
    _off("prompt_cache_enable_swap", "keep evicted blocks of the prefix cache in host memory"),
)
_PARALLEL = (
    Flag(name="tensor_parallel_size", help="devices a layer is split over; on a CPU, processes that share its cores",
         aliases=("-tp",), kind=positive, default=1),
    Flag(name="enable_expert_parallel", help="each rank has some experts of a model whole, instead of a part of "
         "each", kind=boolean, default=False),
    Flag(name="pipeline_parallel_size", help="stages the layers are divided into, each of tensor_parallel_size devices",
         aliases=("-pp",), kind=positive, default=1),
    Flag(name="pipeline_micro_batch", help="steps in flight among which decodes are divided; default: as many as "
         "stages", kind=positive),
    Flag(name="attention_dp_size", help="data-parallel attention groups", kind=positive, default=1, accepts=(1,)),
    Flag(name="enable_custom_allreduce", help="on GPUs of one machine: small sums of ranks by one-shot and two-shot "
         "kernels over NVLink instead of NCCL", kind=boolean, default=False),
    Flag(name="nnodes", help="machines that the ranks are divided among", kind=positive, default=1),
    Flag(name="node_rank", help="this machine's number; 0 is the one that serves requests", kind=count, default=0),
    Flag(name="dist_init_addr", help="with nnodes: where the machines find machine 0, which listens there",
         metavar="HOST:PORT"),
    Flag(name="dist_timeout", help="with nnodes: how long machines wait for each other at the start", kind=seconds,
         default=300.0),
)  # fmt: skip
_DECODING = (
    Flag(name="decode_algo", help="sps: speculative with a draft model, ngram: speculative with what followed equal "
         "text, look_ahead: lookahead decoding, eagle3: speculative with an EAGLE-3 draft head, mtp: speculative with "
         "the multi-token-prediction layers of the model's checkpoint", default="normal",
         choices=("normal", "sps", "ngram", "look_ahead", "eagle3", "mtp")),
    Flag(name="gamma", help="draft tokens of a request in one step, at most 16", kind=positive, default=4),
    Flag(name="use_sps", help="same as --decode_algo sps", kind=boolean, default=False),
    Flag(name="speculative_disable_by_batch_size", help="no draft tokens while more requests run (default: the "
         "measured cost decides)", kind=positive),
    Flag(name="ngram_min_match", help="with ngram: tokens that have to be equal at least", kind=positive, default=2),
    Flag(name="speculative_config", help="vLLM's JSON for all of these: method (ngram, draft_model, eagle3, mtp), "
         "model, num_speculative_tokens, prompt_lookup_min, disable_by_batch_size", kind=json_object, metavar="JSON"),
    Flag(name="use_lookahead", help="same as --decode_algo look_ahead", kind=boolean, default=False),
    Flag(name="look_ahead_window_size", help="with look_ahead: positions that are guessed at once (W)", kind=positive,
         default=7),
    Flag(name="look_ahead_gram_size", help="with look_ahead: tokens of an n-gram (N), at least 2", kind=positive,
         default=3),
    Flag(name="guess_set_size", help="with look_ahead: n-grams that are verified in a step (G)", kind=positive,
         default=5),
)  # fmt: skip
_DRAFT = (
    Flag(name="draft.model", help="draft model (with sps) or draft head (with eagle3): a folder, or a hub id",
         metavar="DIR"),
    Flag(name="draft.tokenizer_dir", help="with sps: folder with the draft's tokenizer (default: the draft model's)",
         metavar="DIR"),
    _later("draft.chat_template", "the draft's chat template", metavar="FILE"),
    Flag(name="draft.dtype", help="with sps: type of the draft's weights; auto: the model's", default="auto",
         choices=_DTYPES),
    _later("draft.tokenizer_special_tokens", "further special tokens of the draft"),
    _later("draft.attn_cls", "the draft's attention implementation", default="paged", choices=_ATTENTION),
    Flag(name="draft.kv_cache_quant", help="how the draft's keys and values are kept, as kv_cache_quant says it",
         default="no_quant", choices=get_args(KVCacheQuant)),
    Flag(name="draft.kv_cache_quant_sub_heads", help="the draft's parts of a head with scales of their own",
         kind=positive, default=1),
    _off("draft.enable_triton_mla", "Triton kernels for the draft's multi-head latent attention"),
    _off("draft.with_visual", "load the draft's vision tower"),
)  # fmt: skip
_QUANTIZATION = (
    Flag(
        name="kv_cache_quant",
        help="how keys and values are kept: in 8 or 4 bits, affine ones with a zero beside each scale, or in 8-bit "
        "floating point (docs/kv-cache-quantization.md); mix_*: not yet, the same as no_quant with a warning",
        default="no_quant",
        choices=get_args(KVCacheQuant),
    ),
    Flag(
        name="kv_cache_quant_sub_heads",
        help="with kv_cache_quant: parts of each head with scales of their own, a number that divides its dimensions; "
        "more are more exact and take 2 bytes each (affine: 4) of a token's key and value",
        kind=positive,
        default=1,
    ),
)
_GRAPHS = (
    Flag(name="disable_cuda_graph", help="launch every kernel of a step by itself (GPU)", kind=boolean,
         default=False),
    Flag(name="cuda_graph_max_batch_size", help="largest decode batch with a CUDA graph (default: max_num_seqs, at "
         "most 256)", kind=positive),
    Flag(name="cuda_graph_batch_sizes", help="decode batch sizes with a CUDA graph, batches are padded up to them "
         "(default: 1 2 4 8 16 24 32 ...)", kind=positive, many=True),
    Flag(name="cuda_graph_max_tokens", help="most tokens of a step with prefill that has a CUDA graph (default: "
         "ragged_flash_max_batch_tokens, at most 2048); 0: such steps have none", kind=count),
    Flag(name="cuda_graph_token_sizes", help="tokens of steps with prefill that have a CUDA graph, steps are padded up "
         "to them (default: 16 32 64 128 256 320 384 448 512 640 ...)", kind=positive, many=True),
)  # fmt: skip
_LORA = (
    Flag(name="enable_lora", help="serve LoRA adapters beside the model", kind=boolean, default=False),
    Flag(name="max_lora_rank", help="largest adapter rank", kind=positive, default=16),
    Flag(name="max_loras", help="adapters on the device: so many different ones run at once", kind=positive, default=8),
    Flag(
        name="max_cpu_loras",
        help="adapters in host memory, those on the device included (default: 4 times max_loras)",
        kind=positive,
    ),
    Flag(
        name="lora_dtype",
        help="type of adapter weights (default: the model's)",
        choices=("auto", "float16", "bfloat16", "float32"),
        default="auto",
    ),
    Flag(
        name="lora_modules",
        help="adapters to load at the start and keep in host memory: NAME=FOLDER, or a hub id in place of the folder",
        kind=named_path,
        many=True,
        metavar="NAME=PATH",
    ),
    Flag(
        name="lora_allowed_roots",
        help="folders below which requests may name adapters by their path (default: none may)",
        many=True,
        metavar="DIR",
    ),
    Flag(
        name="allow_runtime_lora_updating",
        help="let clients load and unload adapters below lora_allowed_roots (POST /v1/load_lora_adapter)",
        kind=boolean,
        default=False,
    ),
    Flag(
        name="enable_json_warmup",
        help="prepare guided decoding before the server is ready, not just after",
        kind=boolean,
        default=False,
    ),
    Flag(
        name="open_schemas",
        help="let objects of JSON Schemas that say nothing of additionalProperties have more keys than they list",
        kind=boolean,
        default=False,
    ),
)
_DISTRIBUTED = (
    _off("enable_llumnix", "run under Llumnix"),
    _later("llumnix_config", "Llumnix configuration", metavar="FILE"),
    _off("enable_disagg", "prefill and decode on different instances"),
    _later("disagg_pd.inst_id", "this instance's name"),
    _later("disagg_pd.disagg_transfer_type", "how KV travels", choices=("rdma", "ipc")),
    _later("disagg_pd.inst_role", "this instance's part", choices=("prefill", "decode")),
    _later("naming_url", "where instances find each other"),
    _off("enable_semi_pd_mode", "prefill and decode share a device"),
    _later("semi_pd.inst_id", "this instance's name"),
    _later("semi_pd.transfer_type", "how KV travels"),
    _later("semi_pd.prefill_server_port", "the prefill server's port", kind=port),
)

GROUPS: Final[Mapping[str, tuple[Flag, ...]]] = {
    "preset": (PRESET,),
    "model": _MODEL,
    "service": _SERVICE,
    "memory and scheduling": _MEMORY,
    "images": IMAGE_FLAGS,
    "prefix cache": _PREFIX_CACHE,
    "parallelism": _PARALLEL,
    "decoding": _DECODING,
    "draft model": _DRAFT,
    "KV cache quantization": _QUANTIZATION,
    "CUDA graphs": _GRAPHS,
    "LoRA and structured output": _LORA,
    "distribution": _DISTRIBUTED,
}

MEMORY_FIELDS: Final[Mapping[str, str]] = {
    "dtype": "dtype",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "ragged_flash_max_batch_tokens": "max_batch_tokens",
    "kv_cache_bytes": "kv_cache_bytes",
    "with_visual": "with_visual",
    "encoder_cache_bytes": "encoder_cache_bytes",
    "max_kv_blocks": "max_kv_blocks",
    "quant": "quant",
    "kv_cache_quant": "kv_cache_quant",
    "kv_cache_quant_sub_heads": "kv_cache_quant_sub_heads",
    "model_impl": "model_impl",
    "max_gpu_memory_utilization": "max_gpu_memory_utilization",
    "disable_cuda_graph": "disable_cuda_graph",
    "cuda_graph_max_batch_size": "cuda_graph_max_batch_size",
    "cuda_graph_batch_sizes": "cuda_graph_batch_sizes",
    "cuda_graph_max_tokens": "cuda_graph_max_tokens",
    "cuda_graph_token_sizes": "cuda_graph_token_sizes",
    "attn_cls": "attn_cls",
    "task": "task",
    "enable_lora": "enable_lora",
    "max_loras": "max_loras",
    "max_cpu_loras": "max_cpu_loras",
    "max_lora_rank": "max_lora_rank",
    "lora_dtype": "lora_dtype",
    "tensor_parallel_size": "tensor_parallel_size",
    "enable_expert_parallel": "enable_expert_parallel",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "pipeline_micro_batch": "pipeline_micro_batch",
}
"""Flags that decide the memory plan, the server's and the check's alike, and the ``EngineConfig`` fields they fill."""


def memory_fields(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The ``EngineConfig`` fields that decide the memory plan."""
    fields = {field: flags[flag] for flag, field in MEMORY_FIELDS.items()}
    if flags["task"] == "embed":  # steps with prompt outputs replay no graph, and are hardly ever mixed
        fields |= {"cuda_graph_max_tokens": 0, "cuda_graph_token_sizes": None}
    lists = {name: fields[name] for name in ("cuda_graph_batch_sizes", "cuda_graph_token_sizes")}
    return {
        **fields,
        "dtype": DTYPE_ALIASES.get(fields["dtype"], fields["dtype"]),
        **{name: None if sizes is None else tuple(sizes) for name, sizes in lists.items()},
    }


TEXT_FIELDS: Final = (
    "tokenizer_dir",
    "tokenizer_special_tokens",
    "chat_template",
    "default_chat_template_kwargs",
    "task",
    "pooling",
    "tool_call_parser",
    "reasoning_parser",
)
"""Flags that say how text is made of tokens and back, the server's and the check's alike: fields of ``ModelSource``."""


def text_fields(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The ``ModelSource`` fields that flags fill."""
    return {
        **{name: flags[name] for name in TEXT_FIELDS},
        "tokenizer_special_tokens": tuple(flags["tokenizer_special_tokens"] or ()),
        "default_chat_template_kwargs": flags["default_chat_template_kwargs"] or {},
    }
