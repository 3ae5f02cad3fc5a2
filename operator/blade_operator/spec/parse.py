"""From an object as stored or as written in a file to a typed `LLMService`, or to every problem with it at once; and
from a ``LoRAAdapter`` to the adapter that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from blade_operator.spec.adapters.fields import Adapter, LoRAAdapterSpec
from blade_operator.spec.errors import Problem, SpecError
from blade_operator.spec.explain import explain, unknown_field
from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.overlay import overlay_problems
from blade_operator.spec.rules.change import CHANGE_RULES
from blade_operator.spec.rules.scaling import standby_problems
from blade_operator.spec.rules.service import RULES, broken
from blade_operator.spec.types import describe
from blade_protocol.labels import ADAPTER_KIND, API_VERSION, KIND

_TOP_LEVEL = ("apiVersion", "kind", "metadata", "spec", "status")


@dataclass(frozen=True, slots=True)
class LLMService:
    """A service whose spec is valid."""

    name: str
    namespace: str
    uid: str
    generation: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: LLMServiceSpec

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names requests may use; never empty."""
        return self.spec.model.served_names or (self.name,)


def parse_service(obj: dict[str, Any]) -> LLMService:
    """The typed form of ``obj``. Raises `SpecError` with every problem found; never only the first."""
    if not isinstance(obj, dict):
        raise SpecError([Problem("<root>", f"must be an object, not {describe(obj)}")])
    problems = [unknown_field((), name, _TOP_LEVEL) for name in obj if name not in _TOP_LEVEL]
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if obj.get(field) != expected:
            found = f"not {describe(obj[field])}" if field in obj else "it is missing"
            problems.append(Problem(field, f"must be {expected}; {found}"))
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        problems.append(Problem("metadata.name", "is required and must be a string"))
    spec = None
    if "spec" not in obj:
        problems.append(Problem("spec", "is required"))
    else:
        try:
            spec = LLMServiceSpec.model_validate(obj["spec"])
        except ValidationError as error:
            # A list whose only item is wrong counts as too short as well: one problem is enough.
            details = [detail for detail in error.errors() if detail["type"] != "too_short" or not detail["input"]]
            problems += map(explain, details)
    if problems or spec is None or not isinstance(metadata, dict) or not isinstance(name, str):
        raise SpecError(problems)
    service = LLMService(
        name=name,
        namespace=metadata.get("namespace") or "default",
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 0),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        spec=spec,
    )
    violations = [Problem(rule.field, rule.full_message) for rule in RULES if broken(rule, name, spec)]
    if violations := [*violations, *overlay_problems(spec), *standby_problems(spec)]:
        raise SpecError(violations)
    return service


def check_change(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise `SpecError` where ``new`` is a change of ``old`` that is not allowed. Both are valid and as stored."""
    before, after = parse_service(old).spec, parse_service(new).spec
    if problems := [Problem(rule.field, rule.message) for rule in CHANGE_RULES if not rule.holds(before, after)]:
        raise SpecError(problems)


def parse_adapter(obj: dict[str, Any]) -> Adapter:
    """The adapter, which has the object's name. Raises `SpecError` with every problem found."""
    problems = [unknown_field((), name, _TOP_LEVEL) for name in obj if name not in _TOP_LEVEL]
    if obj.get("apiVersion", API_VERSION) != API_VERSION or obj.get("kind") != ADAPTER_KIND:
        problems.append(Problem("apiVersion", f"must be {API_VERSION}, and kind {ADAPTER_KIND}"))
    spec = obj.get("spec")
    try:
        fields = LoRAAdapterSpec.model_validate({} if spec is None else spec)
    except ValidationError as error:
        raise SpecError([*problems, *(explain(each, LoRAAdapterSpec) for each in error.errors())]) from error
    try:
        adapter = Adapter(
            name=obj["metadata"]["name"], **{each: getattr(fields, each) for each in type(fields).model_fields}
        )
    except ValidationError as error:
        raise SpecError([*problems, *(explain(each, Adapter) for each in error.errors())]) from error
    if problems:
        raise SpecError(problems)
    return adapter
