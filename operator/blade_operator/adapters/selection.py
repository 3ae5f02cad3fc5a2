"""Which ``LoRAAdapter`` objects are adapters of a service, beside those that it lists itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blade_operator.model.objects import Object
from blade_operator.spec.adapters.fields import MOST_ADAPTERS, Adapter
from blade_operator.spec.errors import SpecError
from blade_operator.spec.parse import LLMService, parse_adapter
from blade_operator.spec.rules.adapters import ADAPTER_RULES


@dataclass(frozen=True, slots=True)
class Selection:
    """What a service's selector comes to."""

    service: LLMService
    """With the selected adapters in its spec."""
    taken: frozenset[str]
    """Names of the LoRAAdapters that are among them."""
    left_out: Mapping[str, str]
    """Names of those that are selected, but cannot be the service's, each with the reason."""


def select(service: LLMService, objects: Iterable[Object]) -> Selection:
    """Add the selected ones of ``objects`` (LoRAAdapters of the namespace) to the service's adapters.

    What would break a rule of ``spec.adapters`` is left out, so that nobody's adapter harms the service or another
    adapter. Of several that exclude each other the oldest is taken.
    """
    selector = service.spec.adapter_selector
    if selector is None:
        return Selection(service, frozenset(), {})
    left_out: dict[str, str] = {}
    waiting: list[Adapter] = []
    for obj in sorted(objects, key=_age):
        if not selector.matches(obj["metadata"].get("labels") or {}) or "deletionTimestamp" in obj["metadata"]:
            continue
        try:
            waiting.append(parse_adapter(obj))
        except SpecError as error:
            left_out[obj["metadata"]["name"]] = str(error.problems[0])
    taken: set[str] = set()
    while waiting:  # one may need another: of those that share a name one needs a weight
        reasons = {}
        for adapter in waiting:
            tried = _with(service, adapter)
            if reason := _refusal(tried):
                reasons[adapter.name] = reason
            else:
                service = tried
                taken.add(adapter.name)
        if len(reasons) == len(waiting):
            left_out |= reasons
            break
        waiting = [adapter for adapter in waiting if adapter.name in reasons]
    return Selection(service, frozenset(taken), left_out)


def _with(service: LLMService, adapter: Adapter) -> LLMService:
    spec = service.spec
    return dataclasses.replace(service, spec=spec.model_copy(update={"adapters": (*spec.adapters, adapter)}))


def _refusal(service: LLMService) -> str:
    """Why the service cannot have the last one of its adapters; empty when it can."""
    *before, last = service.spec.adapters
    if any(adapter.name == last.name for adapter in before):
        return f"spec.adapters of {service.name} has one of this name"
    if last.name in service.served_names or last.requested_as in service.served_names:
        return f"its name is one of the model's in {service.name}"
    if len(before) >= MOST_ADAPTERS:
        return f"{service.name} has {MOST_ADAPTERS} adapters, and can have no more"
    for rule in ADAPTER_RULES:
        if not rule.holds(service.name, service.spec):
            return f"{rule.field}: {rule.message}"
    return ""


def _age(obj: Object) -> tuple[str, str]:
    metadata = obj["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["name"])
