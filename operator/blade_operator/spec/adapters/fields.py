"""The fields of LoRA adapters: what an engine holds of them, and which ones a service has."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.model_fields import URI, ServedName
from blade_operator.spec.types import Hint, Record

MOST_ADAPTERS: Final = 128
"""Adapters of one service, LoRAAdapters that it selects included."""


class Lora(Record):
    """LoRA adapters of an engine (`--enable_lora`). The memory they may take is part of its memory plan."""

    max_gpu: int = Field(
        default=8, alias="maxGPU", ge=1, le=1024, description="Adapters that one step can use (`--max_loras`)."
    )
    max_cpu: int | None = Field(
        default=None,
        alias="maxCPU",
        ge=1,
        le=65536,
        description="Adapters in host memory, those in use included (`--max_cpu_loras`); four times `maxGPU` when "
        "unset.",
    )
    max_rank: int = Field(default=16, ge=1, le=1024, description="Largest rank of an adapter (`--max_lora_rank`).")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        default="auto", description="Type of adapters' weights (`--lora_dtype`); `auto`: the model's."
    )


class _Named(Record):
    name: ServedName = Field(description="Name requests put into `model`, unless `model` is another one.")


class LoRAAdapterSpec(Record):
    """A LoRA adapter for the LLMServices whose `adapterSelector` selects it."""

    uri: Annotated[
        str,
        StringConstraints(pattern=URI, max_length=1024),
        Hint("as spec.model.uri, of the same kind, or file:///absolute/folder"),
    ] = Field(
        description="Where it comes from, as `spec.model.uri`. Of the same kind (a `pvc://` one of the same claim), "
        "with its Secrets, or `file:///folder`. Another `uri` replaces the adapter once its weights are read; until "
        "then, and if they cannot be, requests get the old one."
    )
    replicas: int | None = Field(
        default=None, ge=1, le=1000, description="Engines that have it; all when unset, or when there are fewer."
    )
    preload: bool = Field(default=True, description="`false`: engines read its weights for the first request.")
    pinned: bool = Field(default=False, description="It stays in host memory.")
    model: ServedName | None = Field(
        default=None,
        description="Name requests put into `model` instead. Adapters of one such name share its requests by `weight`.",
    )
    weight: int = Field(
        default=100, ge=0, le=1000, description="Share of that name's requests, beside others' weights."
    )


class Adapter(LoRAAdapterSpec, _Named):
    """A LoRA adapter, loaded into running engines. A change of the list restarts nothing."""

    @property
    def requested_as(self) -> str:
        """The name that requests use."""
        return self.model or self.name
