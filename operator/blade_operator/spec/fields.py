"""The fields of ``LLMService.spec``: one model an object, one attribute a field.

A field is here when the feature behind it exists; nothing is accepted and ignored. Docstrings and descriptions become
the CRD's and the reference's text. Defaults are the ones the API server fills in.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.adapters.fields import MOST_ADAPTERS, Adapter, Lora
from blade_operator.spec.adapters.selector import LabelSelector
from blade_operator.spec.api_fields import ChatTemplate, Pooling, ReasoningParser, Task, ToolCallParser
from blade_operator.spec.model_fields import Model
from blade_operator.spec.observability_fields import LogFormat, Tracing
from blade_operator.spec.pod_fields import EnvVar, Gpus, PodTemplate, Resources
from blade_operator.spec.pricing_fields import Pricing
from blade_operator.spec.rollout_fields import Rollout
from blade_operator.spec.router_fields import Router
from blade_operator.spec.scaling_fields import Scaling
from blade_operator.spec.speculative_fields import Speculative
from blade_operator.spec.types import Bytes, Fraction, Image, ListType, Record, Unique

Preset = Literal["latency", "throughput", "longContext", "chat", "batch", "lowMemory", "deterministic"]
"""The engine's names; what each sets is in docs/tuning.md."""
CheckItemName = Literal["shm", "pbEnv", "flopsDiff", "memoryFit", "modelFiles"]


class CudaGraphs(Record):
    """Steps that a GPU replays as one graph instead of launching every kernel by itself."""

    enabled: bool = Field(default=True, description="`false`: no graphs (`--disable_cuda_graph`).")
    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], ListType("set"), Unique] = Field(
        default=(),
        max_length=64,
        strict=False,
        description="Batch sizes with a graph, growing (`--cuda_graph_batch_sizes`). Batches are padded up to "
        "them. 1, 2, 4, 8, 16, 24, 32 and so on when empty. Wins over `maxBatchSize`.",
    )
    max_batch_size: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Largest batch with a graph (`--cuda_graph_max_batch_size`); by itself `maxNumSeqs`, at most 256.",
    )
    token_sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=65536)], ...], ListType("set"), Unique] = Field(
        default=(),
        max_length=64,
        strict=False,
        description="Tokens of steps with prefill that have a graph, growing (`--cuda_graph_token_sizes`). "
        "Steps are padded up to them. 16, 32, 64, 128, 256, 320, 384, 448, 512, 640 and so on when empty. "
        "Wins over `maxTokens`.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=0,
        le=65536,
        description="Most tokens of a step with prefill that has a graph (`--cuda_graph_max_tokens`); by itself the "
        "budget of a step, at most 2048. 0: such steps have none.",
    )


class Vision(Record):
    """Images in requests."""

    enabled: bool = Field(
        default=True,
        description="`false`: text alone (`--with_visual=false`); the vision tower's memory is free for the KV cache.",
    )
    max_images_per_request: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Most images of a request (`--max_images_per_request`; 64 when unset). `router.maxImages` counts, "
        "too.",
    )
    encoder_cache_bytes: Bytes | None = Field(
        default=None,
        description="Memory for embeddings of images; 512Mi when unset (`--encoder_cache_bytes`). Larger images are "
        "refused. Engines of models without a vision tower take none.",
    )


class Engine(Record):
    """How each engine replica runs."""

    image: Image = Field(default="", description="Engine image; the operator release's own when empty.")
    preset: Preset | None = Field(
        default=None,
        description="Flags for a use (`--preset`). What is set here or in `extraArgs` wins.",
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        default="auto", description="Type weights and activations are computed in (`--dtype`)."
    )
    context_length: int | None = Field(
        default=None,
        ge=16,
        le=16777216,
        description="Most tokens of prompt and answer together (`--max_model_len`); the model's own limit when unset.",
    )
    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Most requests computed at once (`--max_num_seqs`); the engine's default when unset.",
    )
    max_waiting_requests: int | None = Field(
        default=None,
        ge=1,
        le=1048576,
        description="Most requests that wait in an engine for one of these to end (`--max_waiting_requests`); further "
        "ones go to another.",
    )
    kv_cache_bytes: Bytes | None = Field(
        default=None,
        description="Memory for the KV cache (`--kv_cache_bytes`), e.g. `2Gi`. When unset: on CPU a quarter of the "
        "memory limit, on a GPU what `memoryFraction` leaves. With several ranks: of all on a machine together on "
        "CPU, of each on GPUs.",
    )
    memory_fraction: Fraction | None = Field(
        default=None,
        description="Share of the GPU's memory for everything (`--max_gpu_memory_utilization`), a string like `0.85`. "
        "The KV cache gets what weights, activations and graphs leave. The engine's default, 0.9, when unset.",
    )
    vision: Vision | None = Field(
        default=None,
        description="Images in requests. Where it is set and enabled, be it `{}`, the NetworkPolicy lets engines fetch "
        "them from public addresses, ports 80 and 443.",
    )
    cuda_graphs: CudaGraphs | None = Field(default=None, description="CUDA graphs.")
    model_impl: Literal["auto", "blade", "transformers"] = Field(
        default="auto",
        description="Who computes the model (`--model_impl`). `blade`: the engine's own layers. `transformers`: that "
        "library's modules. `auto`: those where the engine does not know the architecture.",
    )
    quant: Literal["none", "int8", "int4"] = Field(
        default="none", description="Older name of `model.quantization.method`, which see."
    )
    enable_triton_mla: bool = Field(
        default=False,
        description="Multi-head latent attention (DeepSeek) by Triton kernels alone (`--enable_triton_mla`). Without "
        "effect on a CPU.",
    )
    lora: Lora | None = Field(default=None, description="LoRA adapters; without it an engine serves none.")
    speculative: Speculative | None = Field(default=None, description="Speculative decoding.")
    deterministic: bool = Field(
        default=False,
        description="The same tokens whatever else is in the batch, at some cost (`--deterministic`).",
    )
    task: Task = Field(
        default="generate",
        description="`generate`: text, and embeddings too. `embed`: embeddings alone. `score`: scores of "
        "pairs of texts alone, by a cross-encoder (`--task`).",
    )
    pooling: Pooling | None = Field(
        default=None,
        description="How hidden states become an embedding (`--pooling`). The `last` token's, their `mean`, or the "
        "first token's, `cls`. When unset: as the model's folder says (`1_Pooling/config.json`), else `last`, "
        "of an encoder `cls`.",
    )
    chat_template: ChatTemplate | None = Field(
        default=None, description="A chat template in place of the model's own (`--chat_template`)."
    )
    tool_call_parser: ToolCallParser | None = Field(
        default=None,
        description="How the model writes calls of tools (`--tool_call_parser`); `hermes` is Qwen's way, too. `none`: "
        "calls stay text. Detected from the chat template when unset.",
    )
    reasoning_parser: ReasoningParser | None = Field(
        default=None,
        description="How the model writes its reasoning (`--reasoning_parser`). `none`: it stays text. Detected from "
        "the chat template when unset.",
    )
    json_warmup: bool = Field(
        default=False,
        description="Prepare guided decoding before the engine is ready (`--enable_json_warmup`).",
    )
    api_servers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes for HTTP and text in each engine (`--api_server_count`).",
    )
    extra_args: tuple[Annotated[str, StringConstraints(min_length=1, max_length=1024)], ...] = Field(
        default=(),
        max_length=64,
        strict=False,
        description="Further flags of `blade_llm_server`, one word an item. "
        "Flags with a field of their own are refused.",
    )
    env: Annotated[tuple[EnvVar, ...], ListType("map", key="name"), Unique] = Field(
        default=(),
        max_length=64,
        strict=False,
        description="Environment of the engine, the check and the download. "
        "Names starting with `BLADE_` are the operator's.",
    )
    resources: Resources | None = Field(
        default=None,
        description="CPU and memory of the engine, the check and the download. Of what is neither requested nor "
        "limited, the engine requests 250m and 512Mi for each rank.",
    )
    gpus: Gpus = Field(default_factory=Gpus, description="Devices and ranks of each engine.")
    shm_size: Bytes = Field(
        default="1Gi",
        description="Size of `/dev/shm`, through which ranks exchange what they compute. It is a memory volume and "
        "counts towards the memory limit. The local runtime uses the machine's.",
    )
    pod_template: PodTemplate | None = Field(
        default=None, description="Laid over the engine pods. A change of it is a new revision."
    )


class Check(Record):
    """`blade_llm_check`, which runs before each engine starts and says whether the environment is fit."""

    mode: Literal["Enforce", "Warn", "Off"] = Field(
        default="Enforce",
        description="`Enforce`: any WARNING or FAILED keeps the engine from starting. `Warn`: only FAILED does. "
        "`Off`: no check.",
    )
    items: Annotated[tuple[CheckItemName, ...], ListType("set"), Unique] = Field(
        default=("shm", "pbEnv", "flopsDiff", "memoryFit", "modelFiles"),
        min_length=1,
        max_length=8,
        strict=False,
        description="What to check. Shared memory, the protobuf variable, equal speed of devices, whether the model "
        "fits into memory, whether its files are complete.",
    )


class Security(Record):
    """Who may connect to the pods."""

    network_policy: bool = Field(
        default=True,
        description="Only routers, Prometheus and, on the internal port, the operator reach its "
        "engines. The routers' public port is open to all, their admin port to the operator and Prometheus. Kept by "
        "clusters whose network enforces NetworkPolicies.",
    )
    engine_token: bool | None = Field(
        default=None,
        description="Engines serve only who has the service's internal token, as its routers have. So API keys "
        "do not depend on the network. When unset: unless `router.image` is set, which may be too old to send it.",
    )


class LLMServiceSpec(Record):
    """The desired state. The operator never writes it."""

    model: Model = Field(description="Which model is served.")
    engine: Engine = Field(default_factory=Engine, description="How each engine replica runs.")
    check: Check = Field(default_factory=Check, description="The check before each engine starts.")
    replicas: int = Field(default=1, ge=0, le=1000, description="Engine replicas; `kubectl scale` sets it.")
    scaling: Scaling | None = Field(default=None, description="Who decides on the number of engines.")
    adapters: Annotated[tuple[Adapter, ...], ListType("map", key="name"), Unique] = Field(
        default=(), max_length=MOST_ADAPTERS, strict=False, description="LoRA adapters of the model, beside it."
    )
    adapter_selector: LabelSelector | None = Field(
        default=None,
        description="Which LoRAAdapters of the namespace belong to the service, by labels; `{}` selects all. "
        "Nothing restarts when they come, change or go.",
    )
    router: Router = Field(default_factory=Router, description="The proxy in front of the engines.")
    rollout: Rollout = Field(default_factory=Rollout, description="How engines are replaced.")
    pricing: Pricing | None = Field(default=None, description="What engines cost, for `status.cost`.")
    security: Security = Field(default_factory=Security, description="Who may connect to the pods.")
    tracing: Tracing | None = Field(default=None, description="Traces; none when unset.")
    log_format: LogFormat | None = Field(default=None, description="Of routers and engines; `text` when unset.")

    @property
    def quant(self) -> str:
        """How weights are quantised while loading, ``none`` if they are not: the value of ``--quant``."""
        quantization = self.model.quantization
        return self.engine.quant if quantization is None or quantization.method is None else quantization.weights
