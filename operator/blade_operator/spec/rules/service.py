"""Cross-field rules. Each is one record: what the API server evaluates, what we evaluate, and the message.

The CRD carries the CEL form, so a cluster refuses what breaks a rule when it is written; `parse_service` evaluates the
Python form for files and the local runtime. Only CEL that every supported Kubernetes knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from blade_operator.spec.fields import CudaGraphs, Engine, LLMServiceSpec
from blade_operator.spec.pod_fields import PodMetadata, PodTemplate
from blade_operator.spec.quantity import parse_duration
from blade_operator.spec.rules.adapters import ADAPTER_RULES
from blade_operator.spec.rules.gpus import GPU_RULES
from blade_operator.spec.rules.model import MODEL_RULES
from blade_operator.spec.rules.pricing import PRICING_RULES
from blade_operator.spec.rules.router import ROUTER_RULES
from blade_operator.spec.rules.rule import Rule
from blade_operator.spec.rules.scaling import SCALING_RULES
from blade_operator.spec.rules.speculative import SPECULATIVE_RULES
from blade_protocol.labels import GROUP

NAME_MAX: Final = 40
"""Most characters of a service's name. The names of Services made of it (``-engine``, ``-router``) and label values
may have 63. Pods get ``-engine-<8>-<10>-<5>`` appended and still show most of it in a host name of 63."""
_NAME: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"

OWNED_FLAGS: Final[dict[str, str]] = {
    "model": "spec.model.uri",
    "host": "the operator",
    "port": "the operator",
    "internal_port": "the operator",
    "served_model_name": "spec.model.servedNames",
    "preset": "spec.engine.preset",
    "dtype": "spec.engine.dtype",
    "max_model_len": "spec.engine.contextLength",
    "max_num_seqs": "spec.engine.maxNumSeqs",
    "max_waiting_requests": "spec.engine.maxWaitingRequests",
    "kv_cache_bytes": "spec.engine.kvCacheBytes",
    "max_gpu_memory_utilization": "spec.engine.memoryFraction",
    "max_body_bytes": "spec.router.maxBodyBytes",
    "with_visual": "spec.engine.vision.enabled",
    "max_images_per_request": "spec.engine.vision.maxImagesPerRequest",
    "encoder_cache_bytes": "spec.engine.vision.encoderCacheBytes",
    "tensor_parallel_size": "spec.engine.gpus.tensorParallel",
    "enable_expert_parallel": "spec.engine.gpus.expertParallel",
    "pipeline_parallel_size": "spec.engine.gpus.pipelineParallel",
    "enable_custom_allreduce": "spec.engine.gpus.customAllReduce",
    "nnodes": "spec.engine.gpus.nodes",
    "node_rank": "spec.engine.gpus.nodes",
    "dist_init_addr": "spec.engine.gpus.nodes",
    "disable_cuda_graph": "spec.engine.cudaGraphs",
    "cuda_graph_batch_sizes": "spec.engine.cudaGraphs",
    "cuda_graph_max_batch_size": "spec.engine.cudaGraphs",
    "cuda_graph_token_sizes": "spec.engine.cudaGraphs",
    "cuda_graph_max_tokens": "spec.engine.cudaGraphs",
    "model_impl": "spec.engine.modelImpl",
    "quant": "spec.model.quantization.method",
    "kv_cache_quant": "spec.model.quantization.kvCache",
    "enable_triton_mla": "spec.engine.enableTritonMla",
    "deterministic": "spec.engine.deterministic",
    "enable_lora": "spec.engine.lora",
    "max_loras": "spec.engine.lora",
    "max_cpu_loras": "spec.engine.lora",
    "max_lora_rank": "spec.engine.lora",
    "lora_dtype": "spec.engine.lora",
    "lora_modules": "spec.adapters",
    "decode_algo": "spec.engine.speculative",
    "gamma": "spec.engine.speculative",
    "speculative_disable_by_batch_size": "spec.engine.speculative",
    "ngram_min_match": "spec.engine.speculative",
    "look_ahead_window_size": "spec.engine.speculative",
    "look_ahead_gram_size": "spec.engine.speculative",
    "guess_set_size": "spec.engine.speculative",
    "draft.model": "spec.engine.speculative.draftModel",
    "task": "spec.engine.task",
    "pooling": "spec.engine.pooling",
    "chat_template": "spec.engine.chatTemplate",
    "tool_call_parser": "spec.engine.toolCallParser",
    "reasoning_parser": "spec.engine.reasoningParser",
    "enable_json_warmup": "spec.engine.jsonWarmup",
    "api_server_count": "spec.engine.apiServers",
    "drain_timeout": "spec.rollout.drainTimeout",
}
"""Engine flags the operator sets, and what sets each."""
OTHER_SPELLINGS: Final[dict[str, str]] = {
    "revision": "spec.model.revision",
    "gpu_memory_utilization": "spec.engine.memoryFraction",
    "kv_cache_memory_bytes": "spec.engine.kvCacheBytes",
    "kv_cache_dtype": "spec.model.quantization.kvCache",
    "quantization": "spec.model.quantization.method",
    "language_model_only": "spec.engine.vision.enabled",
    "enforce_eager": "spec.engine.cudaGraphs",
    "cuda_graph_sizes": "spec.engine.cudaGraphs",
    "cudagraph_capture_sizes": "spec.engine.cudaGraphs",
    "max_cudagraph_capture_size": "spec.engine.cudaGraphs",
    "disable_custom_all_reduce": "spec.engine.gpus.customAllReduce",
    "runner": "spec.engine.task",
    "use_sps": "spec.engine.speculative",
    "use_lookahead": "spec.engine.speculative",
    "speculative_config": "spec.engine.speculative",
    "speculative_model": "spec.engine.speculative",
    "num_speculative_tokens": "spec.engine.speculative",
    "ngram_prompt_lookup_min": "spec.engine.speculative",
    "shutdown_timeout": "spec.rollout.drainTimeout",
    "otlp_traces_endpoint": "spec.tracing",
    "trace_sampling": "spec.tracing",
    "log_format": "spec.logFormat",
}
"""Further flags that set the same, and their owners: vLLM's names of them, mostly (docs/vllm-flags.md)."""
PRESETS_OF_TEXT: Final = ("latency", "longContext", "chat")
_OWNERS: Final = OWNED_FLAGS | OTHER_SPELLINGS


def _any_of(names: Iterable[str]) -> str:
    """A pattern of these flags, which says once what several of them begin with."""
    rests: dict[str, list[str]] = {}
    for name in names:
        word, _, rest = name.replace("_", ".").partition(".")
        rests.setdefault(word, []).append(rest)
    patterns = [_beginning_with(word, further) for word, further in rests.items()]
    return patterns[0] if len(patterns) == 1 else f"({'|'.join(patterns)})"


def _beginning_with(word: str, rests: Iterable[str]) -> str:
    further = [rest for rest in rests if rest]
    if not further:
        return word
    return f"{word}(.{_any_of(further)})?" if "" in rests else f"{word}.{_any_of(further)}"


_OWNED: Final = f"(--(no.)?{_any_of(_OWNERS)}|-[tp]p)(=.*)?"
"""``-tp`` and ``-pp`` are short for the sizes of tensor and pipeline parallelism. Dots are for ``_`` and ``-``, which
flags have there and nothing else, and ``--no-`` may stand before each: the pattern counts towards the size of the
CRD."""


def broken(rule: Rule, name: str, spec: LLMServiceSpec) -> bool:
    """Whether a service of this name and spec breaks ``rule``."""
    return not rule.holds(name, spec)


def _graphs(spec: LLMServiceSpec) -> CudaGraphs:
    return spec.engine.cuda_graphs or CudaGraphs()


def _by_owner(owners: Mapping[str, str]) -> str:
    """Flags by what sets them."""
    flags: dict[str, list[str]] = {}
    for flag, owner in owners.items():
        flags.setdefault(owner.removeprefix("spec.").replace("engine.", "."), []).append(f"--{flag}")
    return "; ".join(f"{', '.join(names)} by {owner}" for owner, names in flags.items())


def _ascending(name: str, sizes: Callable[[CudaGraphs], Sequence[int]]) -> Rule:
    return Rule(
        at=("spec", "engine"),
        field=f"spec.engine.cudaGraphs.{name}",
        cel=f"!has(self.cudaGraphs) || !has(self.cudaGraphs.{name}) || self.cudaGraphs.{name}.isSorted()",
        holds=lambda _, spec: list(sizes(_graphs(spec))) == sorted(sizes(_graphs(spec))),
        message="must grow from one to the next",
    )


def _owned(keys: Iterable[str]) -> list[str]:
    return [key for key in keys if key.startswith(f"{GROUP}/")]


def _metadata(template: PodTemplate | None) -> PodMetadata:
    return (template and template.metadata) or PodMetadata()


def _not_ours(part: str, template: Callable[[LLMServiceSpec], PodTemplate | None]) -> tuple[Rule, Rule]:
    """Labels and annotations that a user may add to the pods of ``part``."""
    field = f"spec.{part}.podTemplate.metadata"
    owned = f"exists(k, k.startsWith('{GROUP}/'))"
    return (
        Rule(
            at=("spec", part, "podTemplate"),
            field=f"{field}.labels",
            cel=f"!has(self.metadata) || !has(self.metadata.labels) || !self.metadata.labels.{owned}",
            holds=lambda name, spec: not _owned(_metadata(template(spec)).labels),
            message=f"labels of {GROUP} select the pods and are the operator's; use another prefix",
        ),
        Rule(
            at=("spec", part, "podTemplate"),
            field=f"{field}.annotations",
            cel=f"!has(self.metadata) || !has(self.metadata.annotations) || !self.metadata.annotations.{owned}",
            holds=lambda name, spec: not _owned(_metadata(template(spec)).annotations),
            message=f"annotations of {GROUP} are the operator's; use another prefix",
        ),
    )


_NOT_OF_EMBEDDINGS: Final = "is of generated text, which tasks embed and score have none of: remove it"


def _of_text(field: str, unset: Callable[[Engine], bool]) -> Rule:
    """An optional field of the engine that says something of generated text only."""
    return Rule(
        at=("spec", "engine"),
        field=f"spec.engine.{field}",
        cel=f"self.task == 'generate' || !has(self.{field})",
        holds=lambda name, spec: spec.engine.task == "generate" or unset(spec.engine),
        message=_NOT_OF_EMBEDDINGS,
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        at=(),
        field="metadata.name",
        cel=f"size(self.metadata.name) <= {NAME_MAX} && self.metadata.name.matches('^{_NAME}$')",
        holds=lambda name, spec: len(name) <= NAME_MAX and re.fullmatch(_NAME, name) is not None,
        message=f"must be at most {NAME_MAX} lower case letters, digits and '-', starting with a letter, "
        "ending with a letter or digit",
    ),
    *MODEL_RULES,
    *ADAPTER_RULES,
    *SPECULATIVE_RULES,
    *GPU_RULES,
    Rule(
        at=("spec", "engine"),
        field="spec.engine.memoryFraction",
        cel="!has(self.memoryFraction) || (has(self.gpus) && self.gpus.count > 0)",
        holds=lambda name, spec: spec.engine.memory_fraction is None or spec.engine.gpus.count > 0,
        message="is a share of a GPU's memory: set gpus.count, or remove it (on CPU, kvCacheBytes sizes the KV cache)",
    ),
    Rule(
        at=("spec", "engine"),
        field="spec.engine.cudaGraphs",
        cel="!has(self.cudaGraphs) || (has(self.gpus) && self.gpus.count > 0)",
        holds=lambda name, spec: spec.engine.cuda_graphs is None or spec.engine.gpus.count > 0,
        message="graphs exist on GPUs only: set gpus.count, or remove it",
    ),
    _ascending("batchSizes", lambda graphs: graphs.batch_sizes),
    _ascending("tokenSizes", lambda graphs: graphs.token_sizes),
    Rule(
        at=("spec", "engine"),
        field="spec.engine.chatTemplate",
        cel="!has(self.chatTemplate) || has(self.chatTemplate.inline) != has(self.chatTemplate.configMapKeyRef)",
        holds=lambda name, spec: (
            spec.engine.chat_template is None
            or (spec.engine.chat_template.inline is None) != (spec.engine.chat_template.config_map_key_ref is None)
        ),
        message="set exactly one of inline and configMapKeyRef",
    ),
    Rule(
        at=("spec", "engine"),
        field="spec.engine.preset",
        cel="!has(self.preset) || self.task == 'generate' || !(self.preset in ['latency', 'longContext', 'chat'])",
        holds=lambda name, spec: spec.engine.task == "generate" or spec.engine.preset not in PRESETS_OF_TEXT,
        message="latency, longContext and chat are for generated text, which tasks embed and score have none of: take "
        "another, or remove it",
    ),
    _of_text("toolCallParser", lambda engine: engine.tool_call_parser is None),
    _of_text("reasoningParser", lambda engine: engine.reasoning_parser is None),
    Rule(
        at=("spec", "engine"),
        field="spec.engine.jsonWarmup",
        cel="self.task == 'generate' || !self.jsonWarmup",
        holds=lambda name, spec: spec.engine.task == "generate" or not spec.engine.json_warmup,
        message=_NOT_OF_EMBEDDINGS,
    ),
    *_not_ours("engine", lambda spec: spec.engine.pod_template),
    *_not_ours("router", lambda spec: spec.router.pod_template),
    *PRICING_RULES,
    *ROUTER_RULES,
    *SCALING_RULES,
    Rule(
        at=("spec", "engine"),
        field="spec.engine.extraArgs",
        cel=f"!has(self.extraArgs) || !self.extraArgs.exists(a, a.matches('^{_OWNED}$'))",
        holds=lambda name, spec: not any(re.fullmatch(_OWNED, arg) for arg in spec.engine.extra_args),
        message="flags that have a field of their own are set there (docs/reference/llmservice.md lists them)",
        details=f"below spec, where .x is engine.x, {_by_owner(_OWNERS)}",
    ),
    Rule(
        at=("spec", "engine"),
        field="spec.engine.env",
        cel="!has(self.env) || !self.env.exists(e, e.name.startsWith('BLADE_'))",
        holds=lambda name, spec: not any(variable.name.startswith("BLADE_") for variable in spec.engine.env),
        message="names that start with BLADE_ are set by the operator; use another name",
    ),
    Rule(
        at=("spec", "rollout"),
        field="spec.rollout",
        cel="self.maxSurge + self.maxUnavailable > 0",
        holds=lambda name, spec: spec.rollout.max_surge + spec.rollout.max_unavailable > 0,
        message="maxSurge and maxUnavailable cannot both be 0: no engine could ever be replaced",
    ),
    Rule(
        at=("spec", "rollout"),
        field="spec.rollout.canary",
        cel="!has(self.canary) || self.maxSurge > 0",
        holds=lambda name, spec: spec.rollout.canary is None or spec.rollout.max_surge > 0,
        message="needs maxSurge of 1 or more",
    ),
    Rule(
        at=("spec", "rollout"),
        field="spec.rollout.drainTimeout",
        cel="duration(self.drainTimeout) <= duration('24h')",
        holds=lambda name, spec: parse_duration(spec.rollout.drain_timeout) <= 24 * 3600,
        message="must be at most 24h",
    ),
)
