"""Kubernetes' label selector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.types import Hint, Labels, Record

LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=317
    ),
    Hint("the key of a label, like team or example.org/team"),
]
_Value = Annotated[str, StringConstraints(max_length=63)]


class Requirement(Record):
    """One requirement on one label."""

    key: LabelKey = Field(description="The label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="What is required of its value.")
    values: tuple[_Value, ...] = Field(
        default=(), max_length=32, strict=False, description="The values of `In` and `NotIn`."
    )

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether ``labels`` meet it."""
        match self.operator:
            case "In":
                return self.key in labels and labels[self.key] in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
        return self.key not in labels


class LabelSelector(Record):
    """Selects objects that have all of the labels and meet all requirements; an empty one selects all."""

    match_labels: Labels = Field(default_factory=dict, description="Labels with their values.")
    match_expressions: tuple[Requirement, ...] = Field(
        default=(), max_length=16, strict=False, description="Requirements."
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects an object with ``labels``."""
        return self.match_labels.items() <= labels.items() and all(
            each.holds(labels) for each in self.match_expressions
        )
