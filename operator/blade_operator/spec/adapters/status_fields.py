"""The fields of ``LoRAAdapter.status``; ``blade_operator.adapters`` fills them in."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from blade_operator.spec.status_fields import Condition, Name, Short, Text
from blade_operator.spec.types import ListType, Record


class ServiceStatus(Record):
    """The adapter on the engines of one LLMService."""

    service: Name = Field(description="The LLMService.")
    desired: int = Field(default=0, description="Engines that are to have it; 0: the service leaves it out.")
    loaded: int = Field(default=0, description="Engines that answer requests for it.")
    reason: Text = Field(default="", description="Why it is left out, or not where it is to be.")


class LoRAAdapterStatus(Record):
    """The observed state. Written by the operator alone; absent while no LLMService selects the adapter."""

    observed_generation: int = Field(default=0, description="Generation of the spec this status speaks of.")
    engines: Short = Field(default="", description="Engines that answer requests for it, of those that are to: `2/2`.")
    services: Annotated[tuple[ServiceStatus, ...], ListType("map", key="service")] = Field(
        default=(), max_length=64, strict=False, description="The LLMServices that select it; at most 64."
    )
    conditions: Annotated[tuple[Condition, ...], ListType("map", key="type")] = Field(
        default=(),
        max_length=4,
        strict=False,
        description="Ready: it is on all engines that are to have it, of all LLMServices that select it.",
    )
