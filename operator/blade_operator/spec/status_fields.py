"""The fields of ``LLMService.status``, for the CRD and the reference; ``blade_operator.status`` fills them in."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.canary_fields import CanaryStatus
from blade_operator.spec.types import ListType, Record

Name = Annotated[str, StringConstraints(max_length=253)]
Text = Annotated[str, StringConstraints(max_length=2048)]
Short = Annotated[str, StringConstraints(max_length=128)]

Phase = Literal[
    "Pending", "Progressing", "Ready", "Degraded", "Failed", "ScaledToZero", "Sleeping", "Waking", "Invalid"
]


class Condition(Record):
    """One thing that holds, does not, or is not known."""

    type: Short = Field(description="What the condition is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Short = Field(description="Why, in one word.")
    message: Text = Field(default="", description="Why, for people.")
    last_transition_time: Short = Field(description="When `status` last changed.")
    observed_generation: int = Field(default=0, description="Generation of the spec this speaks of.")


class RevisionStatus(Record):
    """Which revision of the pod template runs."""

    current: Short = Field(default="", description="Revision that the spec stands for.")
    previous: Short = Field(default="", description="Revision that ran before.")
    updating: bool = Field(default=False, description="Some engines are of another revision, or missing.")
    outdated: bool = Field(
        default=False,
        description="This operator release would render the pods differently. Nothing restarts for that; a changed "
        "spec or `serving.bladellm.io/restarted-at` takes it up.",
    )
    stable: Short = Field(
        default="",
        description="Last one that was ready. That is: as many of its engines as the spec wants, and none of another. "
        "Rollbacks go there.",
    )
    failed: Short = Field(
        default="",
        description="Rolled back. It is the current one, and tried again once the spec or "
        "`serving.bladellm.io/restarted-at` changes.",
    )
    progressed_at: Short = Field(
        default="",
        description="Last progress of `current`. Absent while the time to the deadline does not count.",
    )
    most_ready: int = Field(default=0, description="Engines ready by then.")


class PreflightItem(Record):
    """One item of the check."""

    name: Short = Field(description="Item of `blade_llm_check`.")
    status: Literal["PASS", "WARNING", "FAILED"] = Field(description="Its verdict.")
    detail: Text = Field(default="", description="The numbers, and what to change.")


class Preflight(Record):
    """What `blade_llm_check` found in one pod."""

    pod: Name = Field(description="The pod.")
    passed: int = Field(alias="pass", default=0, description="Items that passed.")
    warning: int = Field(default=0, description="Items with a warning.")
    failed: int = Field(default=0, description="Items that failed.")
    items: Annotated[tuple[PreflightItem, ...], ListType("map", key="name")] = Field(
        default=(), max_length=16, strict=False, description="Every item."
    )


class Fit(Record):
    """Where an engine's memory goes, as the engine itself measured it; of several ranks, that of one."""

    source: Literal["measured"] = Field(description="How the numbers came about.")
    revision: Short = Field(default="", description="Revision the numbers are of.")
    ranks: int = Field(default=0, description="Ranks, each with as much as the figures below; absent for one.")
    weights: Short = Field(default="", description="Weights, e.g. `0.92Gi`.")
    activations: Short = Field(default="", description="Peak of activations.")
    graphs: Short = Field(default="", description="CUDA graphs; absent without any.")
    draft: Short = Field(default="", description="Weights and KV cache of the draft model or head; absent without one.")
    kv_cache: Short = Field(default="", description="KV cache.")
    kv_tokens: int = Field(default=0, description="Tokens the KV cache holds.")
    context_length: int = Field(default=0, description="Most tokens of one request.")
    concurrency: Short = Field(default="", description="Requests of that length that fit at once.")


class Download(Record):
    """Size of the model and progress of its download, in steps of 5 %."""

    bytes: int = Field(default=0, description="Size of the model's files, those of a draft model included.")
    downloaded: int = Field(default=0, description="Bytes that have arrived.")
    bytes_per_second: int = Field(default=0, description="Speed over the last seconds; absent when nothing arrives.")
    eta_seconds: int = Field(default=0, description="What the rest takes at that speed.")
    observed_at: Short = Field(default="", description="When these figures were taken; absent once all is there.")


class Failure(Record):
    """The first failing container of a pod, or its last end; or what keeps pods or objects from being made."""

    pod: Name = Field(description="The pod; empty when none could be made.")
    container: Name = Field(default="", description="The container; empty when the pod as a whole is in trouble.")
    reason: Short = Field(default="", description="Kubernetes' word for it.")
    exit_code: int = Field(default=0, description="Its exit code; 128 + n for signal n.")
    restarts: int = Field(
        default=0,
        description="How often the container was restarted. Exact up to 5, then rounded down to 10, 20, 50 and so on.",
    )
    message: Text = Field(default="", description="What happened, and which field to change, for people.")
    last_log: Text = Field(default="", description="The last line the container left.")


class AdapterStatus(Record):
    """A LoRA adapter, as it really is on the engines."""

    name: Name = Field(description="The adapter.")
    desired: int = Field(default=0, description="Engines that are to have it.")
    loaded: int = Field(default=0, description="Engines that answer requests for it.")
    pods: tuple[Name, ...] = Field(default=(), max_length=16, strict=False, description="Those; at most 16.")
    bytes: int = Field(default=0, description="Of its weights in an engine's host memory; 0 while they are not read.")
    reason: Text = Field(default="", description="Why it is not where it is to be, in an engine's words.")


class SpeculationStatus(Record):
    """Speculative decoding on the engines of the current revision, since they started."""

    drafted: int = Field(
        default=0, description="Draft tokens. Rounded down to 1,000, 2,000, 5,000, 10,000 and so on; 0 below."
    )
    acceptance: Short = Field(
        default="", description="Share of them that the model accepted, e.g. `0.7`; absent below 1,000 draft tokens."
    )


class ScalingStatus(Record):
    """What was decided about the number of engines, and why."""

    mode: Short = Field(description="Of `spec.scaling`.")
    replicas: int = Field(description="Decided on.")
    needed: int = Field(default=0, description="Before delays and speeds.")
    standby: int = Field(default=0, description="On standby.")
    reason: Text = Field(default="", description="The numbers behind it.")
    changes: tuple[Text, ...] = Field(
        default=(), max_length=5, strict=False, description="The last ones: when, from -> to, and why."
    )
    state: Annotated[str, StringConstraints(max_length=8192)] = Field(
        default="", description="What was learnt, for a restart."
    )


class CostStatus(Record):
    """What the last hour cost, by `spec.pricing`. Figures stay until they change by 2 %."""

    currency: Short = Field(description="Of the amounts.")
    window: Short = Field(default="", description="Time that the figures are of, at least; absent in the first minute.")
    per_hour: Short = Field(default="", description="Money an hour.")
    per_million_tokens: Short = Field(
        default="", description="Per million tokens of prompts and answers; absent without any."
    )
    per_million_completion_tokens: Short = Field(default="", description="Per million tokens of answers.")
    engine_hours: Short = Field(default="", description="Hours of engines, ready or not.")
    prompt_tokens: int = Field(default=0, description="Tokens of prompts.")
    completion_tokens: int = Field(default=0, description="Tokens of answers.")
    observed_at: Short = Field(default="", description="When these figures were taken.")
    state: Annotated[str, StringConstraints(max_length=8192)] = Field(
        default="", description="What was counted, for a restart."
    )


class LLMServiceStatus(Record):
    """The observed state. Written by the operator alone."""

    observed_generation: int = Field(default=0, description="Generation of the spec this status speaks of.")
    phase: Phase = Field(default="Pending", description="The conditions in one word.")
    installation: Name = Field(
        default="",
        description="The operator that keeps the service: namespace and name of its Lease. Others "
        "leave it alone, unless `serving.bladellm.io/installation` names another or the Lease has long expired.",
    )
    url: Text = Field(default="", description="Base URL of the OpenAI API.")
    selector: Text = Field(default="", description="Label selector of the engine pods.")
    desired_replicas: int = Field(default=0, description="Engines that are to be there.")
    replicas: int = Field(default=0, description="Engine pods that are there and not leaving.")
    ready_replicas: int = Field(default=0, description="Engine pods that can answer.")
    updated_replicas: int = Field(default=0, description="Engine pods of the current revision.")
    draining_replicas: int = Field(default=0, description="Engine pods that leave and finish their requests.")
    revision: RevisionStatus = Field(default_factory=RevisionStatus, description="Which pods run.")
    canary: CanaryStatus | None = Field(default=None, description="The canary.")
    conditions: Annotated[tuple[Condition, ...], ListType("map", key="type")] = Field(
        default=(),
        max_length=24,
        strict=False,
        description="Ready, its reason and what stands in the way. It is True with SpecValid, ModelCached, "
        "PreflightPassed, ModelFits, WorkersReady and RouterReady. Besides AdaptersReady (with adapters), Scaling "
        "(with `scaling`), SpeculationEffective (with speculative decoding), Progressing, Degraded; Reconciling and "
        "Stalled after kstatus; Contested; RolloutAborted.",
    )
    model: Download | None = Field(default=None, description="The model's size and its download.")
    preflight: Annotated[tuple[Preflight, ...], ListType("map", key="pod")] = Field(
        default=(), max_length=16, strict=False, description="The check's result by pod; at most 16 pods."
    )
    adapters: Annotated[tuple[AdapterStatus, ...], ListType("map", key="name")] = Field(
        default=(), max_length=128, strict=False, description="The LoRA adapters of `spec.adapters`."
    )
    adapters_ready: Short = Field(
        default="", description="How many of `spec.adapters` are where they are to be, as `3/4`."
    )
    fit: Fit | None = Field(default=None, description="How the model fits into memory.")
    scaling: ScalingStatus | None = Field(default=None, description="The decision on the number of engines.")
    cost: CostStatus | None = Field(default=None, description="What tokens cost.")
    speculation: SpeculationStatus | None = Field(
        default=None, description="What speculative decoding brings; only with `spec.engine.speculative`."
    )
    failures: tuple[Failure, ...] = Field(
        default=(),
        max_length=16,
        strict=False,
        description="What failed, causes first, also what recovered.",
    )
