"""The fields of ``LLMService.spec``: one model an object, one attribute a field.

A field is here when the feature behind it exists; nothing is accepted and ignored. Docstrings and descriptions become
the CRD's and the reference's text. Defaults are the ones the API server fills in.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.types import (
    Bytes,
    Duration,
    Hint,
    Image,
    ListType,
    ObjectName,
    Quantity,
    Record,
    Unique,
)

CheckItemName = Literal["shm", "pbEnv", "flopsDiff", "memoryFit", "modelFiles"]
DEFAULT_CACHE_CLAIM = "bladellm-models"


class ModelCache(Record):
    """Where downloaded models are kept."""

    claim_name: ObjectName = Field(
        default=DEFAULT_CACHE_CLAIM,
        description="PersistentVolumeClaim in the service's namespace that holds downloads. It must exist on a "
        "cluster; the local runtime makes it a folder.",
    )


class Model(Record):
    """Which model is served, and under which names."""

    uri: Annotated[
        str,
        StringConstraints(pattern=r"^(file:///.+|hf://[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)$", max_length=1024),
        Hint("file:///absolute/folder or hf://organisation/name"),
    ] = Field(
        description="`file:///folder`: an absolute path the engine can read (in its image, or on this machine under "
        "the local runtime). `hf://organisation/name`: a model of the Hugging Face hub, downloaded once into the cache."
    )
    revision: (
        Annotated[
            str,
            StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128),
            Hint("a branch, tag or commit of the hub"),
        ]
        | None
    ) = Field(
        default=None, description="Branch, tag or commit of an `hf://` model; the hub's default branch when unset."
    )
    served_names: Annotated[
        tuple[
            Annotated[
                str,
                StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", min_length=1, max_length=128),
                Hint("a name of letters, digits and . _ / : -"),
            ],
            ...,
        ],
        ListType("set"),
        Unique,
    ] = Field(
        default=(),
        max_length=16,
        strict=False,
        description="Names requests may put into `model`; answers carry the first. The service's own name when empty.",
    )
    cache: ModelCache | None = Field(default=None, description="Where an `hf://` model is kept.")


class EnvVar(Record):
    """One environment variable."""

    name: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128),
        Hint("letters, digits and _, not starting with a digit"),
    ] = Field(description="Name of the variable.")
    value: Annotated[str, StringConstraints(max_length=4096)] = Field(default="", description="Its value.")


class ResourceList(Record):
    """Amounts of resources."""

    cpu: Quantity | None = Field(default=None, description="Cores, e.g. `2` or `500m`.")
    memory: Quantity | None = Field(default=None, description="Bytes, e.g. `4Gi`.")


class Resources(Record):
    """What a container asks for and may use at most. The local runtime does not enforce them."""

    requests: ResourceList | None = Field(default=None, description="What the scheduler keeps free for the container.")
    limits: ResourceList | None = Field(default=None, description="What the container may use at most.")


class Engine(Record):
    """How each engine replica runs."""

    image: Image = Field(default="", description="Engine image; the operator release's own when empty.")
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
    kv_cache_bytes: Bytes | None = Field(
        default=None,
        description="Memory for the KV cache on CPU (`--kv_cache_bytes`), e.g. `2Gi`; "
        "a quarter of the memory limit when unset.",
    )
    extra_args: tuple[Annotated[str, StringConstraints(min_length=1, max_length=1024)], ...] = Field(
        default=(),
        max_length=64,
        strict=False,
        description="Further flags of `blade_llm_server`, one word an item. "
        "Flags that have a field of their own are refused.",
    )
    env: Annotated[tuple[EnvVar, ...], ListType("map", key="name"), Unique] = Field(
        default=(),
        max_length=64,
        strict=False,
        description="Environment of the engine, the check and the download. "
        "Names starting with `BLADE_` are the operator's.",
    )
    resources: Resources | None = Field(default=None, description="CPU and memory of the engine container.")
    shm_size: Bytes = Field(
        default="1Gi",
        description="Size of `/dev/shm`, a memory volume (counts towards the memory limit). "
        "The local runtime uses the machine's.",
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
        description="What to check: shared memory, the protobuf variable, equal speed of devices, whether the model "
        "fits into memory, whether its files are complete.",
    )


class Router(Record):
    """The proxy in front of the engines."""

    replicas: int = Field(default=1, ge=1, le=64, description="Router pods.")
    policy: Literal["auto", "roundRobin", "leastRequest"] = Field(
        default="auto",
        description="How an engine is chosen: in turn, the one with the fewest requests in flight, or the best policy "
        "there is (today `leastRequest`).",
    )
    image: Image = Field(default="", description="Router image; the operator release's own when empty.")
    resources: Resources | None = Field(default=None, description="CPU and memory of the router container.")


class Rollout(Record):
    """How engines are replaced when the pod they need changes."""

    max_surge: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Engines that may run beyond `replicas` during a change. `0` where there is no room for another "
        "(then `maxUnavailable` must be at least 1).",
    )
    max_unavailable: int = Field(
        default=0, ge=0, le=1000, description="Engines that may be missing from `replicas` during a change."
    )
    drain_timeout: Duration = Field(
        default="10m", description="How long an engine that leaves may finish its requests before it is stopped."
    )
    revision_history_limit: int = Field(
        default=5, ge=0, le=100, description="Earlier revisions kept, so that going back reuses the very same pods."
    )


class LLMServiceSpec(Record):
    """What is wanted. The operator never writes it."""

    model: Model = Field(description="Which model is served.")
    engine: Engine = Field(default_factory=Engine, description="How each engine replica runs.")
    check: Check = Field(default_factory=Check, description="The check before each engine starts.")
    replicas: int = Field(default=1, ge=0, le=1000, description="Engine replicas; `kubectl scale` sets it.")
    router: Router = Field(default_factory=Router, description="The proxy in front of the engines.")
    rollout: Rollout = Field(default_factory=Rollout, description="How engines are replaced.")
