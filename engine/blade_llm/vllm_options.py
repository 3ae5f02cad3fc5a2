"""vLLM's options beside BladeLLM's: what each becomes, for the command line and for ``LLM(...)`` alike.

An option of vLLM's either has the same name here, or another one, or changes nothing here (it is accepted with a
warning), or is refused with what to do instead. ``docs/vllm-flags.md`` is written from this table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from blade_llm.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOption:
    """One option of vLLM's, named with underscores."""

    name: str
    status: Literal["same", "renamed", "ignored", "refused"]
    to: str = ""
    """What it is called here, where it is ``same`` or ``renamed``."""
    note: str = ""
    """Why it is ignored, or what to do instead of it."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values that are spelt otherwise here, or that have no counterpart: their own names, in vLLM's spelling."""
    off: tuple[str, ...] = ()
    """Values of a refused option that request nothing."""
    switch: bool = False
    """Takes no value; there is ``--no-NAME`` as well."""
    short: str = ""
    """vLLM's short form."""
    secret: bool = False
    """Its value is never shown."""
    other_off: bool = False
    """What :attr:`off` requests is vLLM's default and yet not what happens here: a warning says so."""

    @property
    def nothing(self) -> str:
        """The warning where a value changes nothing."""
        return f"changes nothing: {self.note}"

    def refusal(self, spelled: str, given: str) -> str:
        """The error for a value that is not taken; ``given``: the option with it."""
        return f"{spelled if self.secret else given} is not taken: {self.note}"


_INVERTED: Final = {"true": "false", "false": "true"}
_MEDIA_CACHE: Final = "embeddings are kept by content (--encoder_cache_bytes), what was decoded is not"
_TLS: Final = "the engine speaks plain HTTP: end TLS in the router (blade_router --tls_cert, --tls_key)"
_REPLICAS: Final = "run several engines behind the router (replicas of an LLMService)"
_CONFIG: Final = "edit the model's config.json"
_LOGS: Final = "requests are not logged here; the router has an access log"


def _same(name: str, note: str = "", *, values: Mapping[str, str] | None = None, short: str = "") -> VllmOption:
    return VllmOption(name=name, status="same", to=name, note=note, values=values or {}, short=short)


def _switch(name: str, note: str = "") -> VllmOption:
    return VllmOption(name=name, status="same", to=name, note=note, switch=True)


def _renamed(
    name: str,
    to: str,
    note: str = "",
    *,
    values: Mapping[str, str] | None = None,
    switch: bool = False,
) -> VllmOption:
    return VllmOption(name=name, status="renamed", to=to, note=note, values=values or {}, switch=switch)


def _ignored(why: str, *names: str, switch: bool = False, short: str = "") -> tuple[VllmOption, ...]:
    return tuple(VllmOption(name=name, status="ignored", note=why, switch=switch, short=short) for name in names)


def _refused(
    instead: str,
    *names: str,
    off: tuple[str, ...] = (),
    switch: bool = False,
    short: str = "",
    secret: bool = False,
    other_off: bool = False,
) -> tuple[VllmOption, ...]:
    off = ("false",) if switch else off
    rest: dict[str, Any] = {"switch": switch, "short": short, "secret": secret, "other_off": other_off}
    return tuple(VllmOption(name=name, status="refused", note=instead, off=off, **rest) for name in names)


_OPTIONS: Final = (
    # Model and text
    _same("model", "or as the first argument, without `--model`"),
    _renamed("tokenizer", "tokenizer_dir", "a folder"),
    _same("served_model_name"),
    _same("revision", "as `ORG/NAME@REVISION`"),
    _same("dtype"),
    _same("load_format", values={"safetensors": "auto", "hf": "auto"}),
    _same("model_impl", values={"vllm": "blade"}),
    _same("max_model_len", "takes `32k`, `32K`, too"),
    _same("default_chat_template_kwargs"),
    _same("chat_template", "a file, or the template itself"),
    _same("tool_call_parser", values={"qwen3_xml": "qwen3_coder", "llama4_pythonic": "pythonic",
                                      "llama4_json": "llama3_json", "glm47": "glm45"}),
    _same("reasoning_parser"),
    _same("task", values={"auto": "generate", "embedding": "embed"}),
    _renamed("runner", "task", values={"auto": "generate", "pooling": "embed"}),
    *_ignored("no code of a model is ever run", "trust_remote_code", switch=True),
    *_ignored("there is one tokenizer library, tokenizers", "tokenizer_mode"),
    *_ignored("tools work without it, where --tool_call_parser or the chat template names a parser",
              "enable_auto_tool_choice", switch=True),
    *_ignored("tools are left out where tool_choice is none", "exclude_tools_when_tool_choice_none", switch=True),
    *_ignored("a reasoning parser is enough", "enable_reasoning", switch=True),
    *_ignored("templates of requests are rendered in a process of their own", "trust_request_chat_template",
              switch=True),
    *_refused("tokenizer and code are of the model's revision: give --revision",
              "tokenizer_revision", "code_revision"),
    *_refused("the content of messages reaches templates as text", "chat_template_content_format",
              off=("auto", "string")),
    *_refused("responses have the role assistant", "response_role", off=("assistant",)),
    *_refused("parsers are those of --tool_call_parser and --reasoning_parser",
              "tool_parser_plugin", "reasoning_parser_plugin", off=("",)),
    *_refused("set the variable HF_TOKEN", "hf_token", secret=True),
    *_refused("set the variable HF_HUB_CACHE to this folder", "download_dir"),
    *_refused(_CONFIG, "hf_overrides", "rope_scaling", "rope_theta", "hf_config_path", off=("{}",)),
    *_refused("generation_config.json of the model's folder is used: edit it", "generation_config", off=("auto",)),
    *_refused("edit the model's generation_config.json", "override_generation_config", off=("{}",)),
    *_refused("the checkpoint's config.json says how it is quantised: leave it out; --quant quantises others",
              "quantization", off=("none",), short="-q"),
    *_refused("the tokenizer is always needed", "skip_tokenizer_init", switch=True),
    *_refused("give --task", "convert", off=("auto", "none")),
    *_refused("give --pooling last or --pooling mean", "pooler_config", "override_pooler_config"),
    *_refused("models are in the Hugging Face layout", "config_format", off=("auto", "hf")),
    *_ignored("only one copy of the weights is fetched", "ignore_patterns"),
    *_ignored("weights are read as the engine sees fit", "model_loader_extra_config", "safetensors_load_strategy",
              "max_parallel_loading_workers"),
    *_ignored("progress shows on a terminal", "use_tqdm_on_load", switch=True),
    # Memory and scheduling
    _renamed("gpu_memory_utilization", "max_gpu_memory_utilization", "on a CPU give `--kv_cache_bytes`"),
    _renamed("kv_cache_memory_bytes", "kv_cache_bytes"),
    _renamed("num_gpu_blocks_override", "max_kv_blocks", "blocks of 16 tokens; an upper bound"),
    _renamed("kv_cache_dtype", "kv_cache_quant", values={"auto": "no_quant", "fp8": "fp8_e4m3"}),
    _same("max_num_seqs", "64 when left out"),
    _renamed("max_num_batched_tokens", "ragged_flash_max_batch_tokens", "2048 when left out"),
    _renamed("enable_prefix_caching", "disable_prompt_cache", "on by default", values=_INVERTED, switch=True),
    _renamed("preemption_mode", "preempt_strategy", "`SWAP` is refused: preempted requests are computed anew",
             values={"recompute": "RECOMPUTE", "swap": "SWAP"}),
    *_ignored("prompts are always computed in chunks", "enable_chunked_prefill", switch=True),
    *_ignored("chunks follow the token budget of a step", "max_num_partial_prefills", "max_long_partial_prefills",
              "long_prefill_token_threshold"),
    *_ignored("the host's work always overlaps with the device's", "async_scheduling", "disable_async_output_proc",
              switch=True),
    *_ignored("every step is scheduled", "num_scheduler_steps", "scheduler_delay_factor", "num_lookahead_slots"),
    *_ignored("preempted requests are computed anew", "swap_space"),
    *_ignored("KV blocks have 16 tokens", "block_size"),
    *_ignored("there is one hash of prefixes", "prefix_caching_hash_algo"),
    *_ignored("scales are found while it runs", "calculate_kv_scales", switch=True),
    *_ignored("there is one block manager", "use_v2_block_manager", "disable_hybrid_kv_cache_manager", switch=True),
    *_ignored("a request's priority always counts; --allow_client_priority takes those below 0", "scheduling_policy"),
    *_ignored("events are sent as tokens come", "stream_interval"),
    *_refused("weights stay on the device: give --quant or a smaller model", "cpu_offload_gb", off=("0", "0.0")),
    *_refused("requests may ask for at most 20 log-probabilities", "max_logprobs", off=("20",)),
    *_refused("log-probabilities are those of the model's own logits", "logprobs_mode", off=("raw_logprobs",)),
    *_refused("prompts are text or token ids", "enable_prompt_embeds", switch=True),
    *_refused("sampling is by the fields of requests", "logits_processors", "logits_processor_pattern"),
    *_refused("there is one scheduler", "scheduler_cls"),
    *_refused("attention is as the model's config.json says", "disable_sliding_window",
              switch=True),
    # CUDA graphs and kernels
    _renamed("enforce_eager", "disable_cuda_graph", switch=True),
    _renamed("cuda_graph_sizes", "cuda_graph_batch_sizes"),
    _renamed("cudagraph_capture_sizes", "cuda_graph_batch_sizes"),
    _renamed("max_cudagraph_capture_size", "cuda_graph_max_batch_size"),
    *_ignored("attention has one form", "disable_cascade_attn", switch=True),
    *_ignored("graphs are chosen by the size of a batch, not by lengths", "max_seq_len_to_capture"),
    *_ignored("models are not compiled by torch", "compilation_config", short="-cc"),
    *_ignored("models are not compiled by torch", "optimization_level", short="-O"),
    *_ignored("the device is what the machine has; CUDA_VISIBLE_DEVICES hides a GPU", "device"),
    *_refused("give --attn_cls ragged_flash or paged, for TRITON_MLA --enable_triton_mla", "attention_backend"),
    # Parallelism
    _same("tensor_parallel_size", short="-tp"),
    _same("pipeline_parallel_size", short="-pp"),
    _same("nnodes"),
    _same("node_rank"),
    _renamed("disable_custom_all_reduce", "enable_custom_allreduce", values=_INVERTED, switch=True),
    *_ignored("processes are started by the engine itself", "distributed_executor_backend"),
    *_refused("give --dist_init_addr HOST:PORT", "master_addr", "master_port"),
    *_refused(_REPLICAS, "data_parallel_size", off=("1",), short="-dp"),
    *_refused(_REPLICAS, "data_parallel_size_local", off=("1",)),
    *_refused(_REPLICAS, "data_parallel_rank", "data_parallel_start_rank", "data_parallel_address",
              "data_parallel_rpc_port", "data_parallel_backend"),
    *_refused(_REPLICAS, "data_parallel_hybrid_lb", "data_parallel_external_lb", "headless", switch=True),
    _switch("enable_expert_parallel", "with two tensor ranks or more"),
    *_refused("experts stay on the rank that has them", "enable_eplb", switch=True),
    *_refused("prefill and decode run on one engine", "kv_transfer_config"),
    *_refused("workers are the engine's own", "worker_cls", "worker_extension_cls", "additional_config"),
    # Decoding
    _renamed("speculative_model", "draft.model", "with `--decode_algo sps` or `eagle3`"),
    _renamed("num_speculative_tokens", "gamma", "with `--decode_algo sps`, `ngram`, `eagle3` or `mtp`"),
    _same("speculative_config", "`method` ngram, draft_model, eagle3 or mtp"),
    _same("speculative_disable_by_batch_size"),
    _renamed("ngram_prompt_lookup_min", "ngram_min_match"),
    *_ignored("the longest match is found whatever its length", "ngram_prompt_lookup_max"),
    *_ignored("there is one backend, llguidance", "guided_decoding_backend", "structured_outputs_config"),
    *_ignored("send seed with a request: its output then repeats whatever else runs", "seed"),
    # LoRA
    _switch("enable_lora"),
    _same("max_loras"),
    _same("max_lora_rank"),
    _same("max_cpu_loras"),
    _same("lora_dtype"),
    _same("lora_modules"),
    *_refused("give --lora_modules NAME=FOLDER", "qlora_adapter_name_or_path"),
    *_ignored("adapters never add to the vocabulary", "lora_extra_vocab_size"),
    *_ignored("adapters are split as their layers are", "fully_sharded_loras", switch=True),
    # Service
    _same("host", "127.0.0.1 when left out; `--host 0.0.0.0` for other machines"),
    _same("port", "8081 when left out"),
    _same("api_server_count"),
    _renamed("uvicorn_log_level", "log_level",
             values={"trace": "DEBUG", "debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR",
                     "critical": "ERROR"}),
    _renamed("shutdown_timeout", "drain_timeout"),
    _switch("disable_frontend_multiprocessing"),
    *_refused("keys are the router's (blade_router --keys FILE); on an engine BLADE_PUBLIC_TOKEN=1 with "
              "BLADE_INTERNAL_TOKEN_FILE requires a token", "api_key", secret=True),
    *_refused(_TLS, "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ciphers"),
    *_refused(_TLS, "ssl_cert_reqs", off=("0",)),
    *_refused(_TLS, "enable_ssl_refresh", switch=True),
    _same("allowed_origins", "one by one or as vLLM's JSON list; without it no page may, where vLLM lets any"),
    *_refused("pages of --allowed_origins may send GET, POST and DELETE, with any headers", "allowed_methods",
              "allowed_headers", off=('["*"]', "*"), other_off=True),
    *_refused("pages send keys in a header of their own, never cookies", "allow_credentials", switch=True),
    *_refused("it listens on --host and --port", "uds"),
    *_refused("put the path into the proxy", "root_path", off=("",)),
    *_refused("the server takes no code", "middleware"),
    *_refused("write the flags out", "config"),
    *_refused("OpenAPI pages are always served", "disable_fastapi_docs", switch=True),
    *_refused("send return_tokens_as_token_ids with the request", "return_tokens_as_token_ids", switch=True),
    *_refused('send "stream_options": {"include_usage": true} with the request', "enable_force_include_usage",
              switch=True),
    _switch("enable_tokenizer_info_endpoint"),
    *_refused("no model is taken off the device: scale the service to 0", "enable_sleep_mode", switch=True),
    *_refused("give --log_level", "log_config_file", off=("",)),
    *_ignored("traces always have queue, prefill and decode", "collect_detailed_traces"),
    *_ignored("usage always has prompt_tokens_details", "enable_prompt_tokens_details", switch=True),
    *_ignored("responses always have x-request-id", "enable_request_id_headers", switch=True),
    *_ignored("/load is always served", "enable_server_load_tracking", "disable_log_stats", switch=True),
    *_ignored(_LOGS, "disable_log_requests", "enable_log_requests", "enable_log_outputs", "enable_log_deltas",
              "disable_uvicorn_access_log", switch=True),
    *_ignored(_LOGS, "max_log_len", "disable_access_log_for_endpoints"),
    *_ignored("limits are --max_body_bytes and --max_connections", "h11_max_incomplete_event_size",
              "h11_max_header_count"),
    *_ignored("metrics are never hidden", "show_hidden_metrics_for_version"),
    # Images and sound
    _same("allowed_local_media_path", "a folder, or several"),
    _same("allowed_media_domains", "`*.example`, too"),
    _renamed("language_model_only", "with_visual", values=_INVERTED, switch=True),
    *_ignored("give --max_images_per_request and --max_videos_per_request; there is no sound", "limit_mm_per_prompt"),
    *_ignored("give --min_image_pixels and --max_image_pixels; LLM(...) takes it", "mm_processor_kwargs"),
    *_ignored("each rank has the whole vision tower, as with data", "mm_encoder_tp_mode"),
    *_ignored(_MEDIA_CACHE, "mm_processor_cache_gb"),
    *_ignored(_MEDIA_CACHE, "disable_mm_preprocessor_cache", switch=True),
    *_ignored("limits are --max_image_bytes, --max_source_pixels and --image_timeout", "media_io_kwargs"),
    *_ignored("memory for images is planned without running them", "skip_mm_profiling", switch=True),
)  # fmt: skip
VLLM_OPTIONS: Final[Mapping[str, VllmOption]] = {option.name: option for option in _OPTIONS}
"""vLLM's options by name."""

_FIELDS: Final = frozenset(EngineConfig.__struct_fields__)
_RENAMED_FIELDS: Final[Mapping[str, str]] = {"ragged_flash_max_batch_tokens": "max_batch_tokens"}
_SPECULATIVE: Final = frozenset({"gamma", "draft.model", "ngram_min_match", "speculative_disable_by_batch_size"})
_REQUESTS_NOTHING: Final[Mapping[str, tuple[str, ...]]] = {
    "tool_call_parser": ("none",),
    "reasoning_parser": ("none",),
    "ngram_min_match": ("2",),
    "nnodes": ("1",),
    "node_rank": ("0",),
    "gamma": ("4",),
    "port": ("8081",),
    "api_server_count": ("1",),
    "log_level": ("INFO",),
    "drain_timeout": ("30.0",),
    "enable_tokenizer_info_endpoint": ("false",),
    "disable_frontend_multiprocessing": ("false",),
    "allowed_local_media_path": ("",),
    "allowed_media_domains": ("[]",),
}
"""What flags that ``LLM(...)`` has no field for may be given: what the server has when they are left out."""


def engine_fields(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Keyword arguments of ``LLM(...)`` as fields of :class:`~blade_llm.config.EngineConfig`, and warnings.

    Names that neither the configuration nor vLLM has stay as they are; None for one of vLLM's is as good as nothing.
    Raises ``ValueError`` for what is refused, for a feature that does not exist yet, and for a value that a field does
    not take.
    """
    fields: dict[str, Any] = {}
    warnings: list[str] = []
    for name, value in arguments.items():
        option = VLLM_OPTIONS.get(name)
        if option is None:
            fields[name] = _field(name, value, name, value) if name in _FIELDS else value
        elif value is None:
            continue
        elif option.status == "ignored":
            warnings.append(f"{name} {option.nothing}")
        elif option.status == "refused":
            if _text(value) not in option.off:
                raise ValueError(option.refusal(name, f"{name}={value!r}"))
            if option.other_off:
                warnings.append(f"{name} {option.nothing}")
        else:
            ours = option.values.get(_text(value), value)
            target = _RENAMED_FIELDS.get(option.to, option.to)
            if target == "disable_prompt_cache":
                fields["enable_prompt_cache"] = _field("enable_prompt_cache", value, name, value)
            elif target in _FIELDS:
                fields[target] = _field(target, ours, name, value)
            elif _text(ours) not in _REQUESTS_NOTHING.get(target, ()):
                if target in _SPECULATIVE:
                    raise ValueError(
                        f"{name}={value!r}: give LLM(speculative={{...}}) with all of it; leave it out here"
                    )
                raise ValueError(f"{name}={value!r} is not available in this version; leave it out")
    return fields, warnings


def _field(field: str, value: Any, name: str, given: Any) -> Any:
    """``value`` as ``field`` of the configuration has it; ``name`` and ``given``: as the caller wrote them."""
    kind = _types()[field]
    try:
        return msgspec.convert(str(value) if isinstance(value, os.PathLike) else value, kind, strict=False)
    except msgspec.ValidationError as error:
        names = [choice for each in (kind, *get_args(kind)) if get_origin(each) is Literal for choice in get_args(each)]
        if not names:
            raise ValueError(f"{name}={given!r}: {error}") from None
        raise ValueError(f"{name}={given!r} is not available in this version; choose from {', '.join(names)}") from None


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(EngineConfig)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "{}" if value == {} else str(value)
