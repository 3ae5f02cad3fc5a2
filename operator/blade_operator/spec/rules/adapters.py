"""Rules of ``spec.engine.lora`` and ``spec.adapters`` that span fields."""

from __future__ import annotations

from typing import Final

from blade_operator.spec.adapters.fields import Adapter, Lora
from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.rules.place import cel_readable, readable
from blade_operator.spec.rules.rule import Rule


def _lora(spec: LLMServiceSpec) -> Lora:
    return spec.engine.lora or Lora()


def _names(spec: LLMServiceSpec) -> set[str]:
    """All that requests and engines call adapters."""
    return {name for adapter in spec.adapters for name in (adapter.name, adapter.requested_as)}


def _groups(spec: LLMServiceSpec) -> dict[str, list[Adapter]]:
    """The adapters of each name that requests use."""
    groups: dict[str, list[Adapter]] = {}
    for adapter in spec.adapters:
        groups.setdefault(adapter.requested_as, []).append(adapter)
    return groups


def _requests_go_somewhere(spec: LLMServiceSpec) -> bool:
    return all(any(adapter.weight for adapter in group) for group in _groups(spec).values())


def _names_are_unambiguous(spec: LLMServiceSpec) -> bool:
    """A name that adapters share is of none outside, but may be one of theirs."""
    groups = _groups(spec)
    return all(adapter.requested_as == adapter.name or adapter.name not in groups for adapter in spec.adapters)


def _requirements_are_whole(spec: LLMServiceSpec) -> bool:
    requirements = spec.adapter_selector.match_expressions if spec.adapter_selector is not None else ()
    return all((each.operator in ("In", "NotIn")) == bool(each.values) for each in requirements)


ADAPTER_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        at=("spec", "engine"),
        field="spec.engine.lora.maxCPU",
        cel="!has(self.lora) || !has(self.lora.maxCPU) || self.lora.maxCPU >= self.lora.maxGPU",
        holds=lambda name, spec: (max_cpu := _lora(spec).max_cpu) is None or max_cpu >= _lora(spec).max_gpu,
        message="is less than maxGPU, whose adapters are in host memory, too: raise it",
    ),
    Rule(
        at=("spec",),
        field="spec.engine.lora",
        cel="!has(self.adapters) || size(self.adapters) == 0 || (has(self.engine) && has(self.engine.lora))",
        holds=lambda name, spec: not spec.adapters or spec.engine.lora is not None,
        message="engines serve adapters with it only: set it (`lora: {}` for the defaults), or remove spec.adapters",
    ),
    Rule(
        at=("spec",),
        field="spec.engine.lora",
        cel="!has(self.adapterSelector) || (has(self.engine) && has(self.engine.lora))",
        holds=lambda name, spec: spec.adapter_selector is None or spec.engine.lora is not None,
        message="engines serve adapters with it only: set it (`lora: {}` for the defaults), or remove "
        "spec.adapterSelector",
    ),
    Rule(
        at=("spec",),
        field="spec.adapterSelector.matchExpressions",
        cel="!has(self.adapterSelector) || !has(self.adapterSelector.matchExpressions) || "
        "self.adapterSelector.matchExpressions.all(e, "
        "(e.operator == 'In' || e.operator == 'NotIn') == (has(e.values) && size(e.values) > 0))",
        holds=lambda name, spec: _requirements_are_whole(spec),
        message="In and NotIn need values, Exists and DoesNotExist take none",
    ),
    Rule(
        at=("spec",),
        field="spec.model.servedNames",
        cel="!has(self.adapters) || !has(self.model.servedNames) || !self.adapters.exists(a, "
        "a.name in self.model.servedNames || (has(a.model) && a.model in self.model.servedNames))",
        holds=lambda name, spec: not _names(spec) & {*spec.model.served_names},
        message="one is the name of an adapter, too: each needs a name of its own",
    ),
    Rule(
        at=("spec",),
        field="spec.adapters",
        cel=f"!has(self.adapters) || self.adapters.all(a, {cel_readable('a.uri')})",
        holds=lambda name, spec: all(readable(adapter.uri, spec.model.uri) for adapter in spec.adapters),
        message="each uri must be a file:// one, or of the kind of spec.model.uri (pvc:// of the same claim): the pods "
        "have one volume, and one Secret, for both",
    ),
    Rule(
        at=("spec",),
        field="spec.adapters",
        cel="!has(self.adapters) || self.adapters.all(a, (has(a.weight) ? a.weight : 100) > 0 || "
        "self.adapters.exists(b, (has(b.model) ? b.model : b.name) == (has(a.model) ? a.model : a.name) && "
        "(has(b.weight) ? b.weight : 100) > 0))",
        holds=lambda name, spec: _requests_go_somewhere(spec),
        message="of adapters with one model at least one needs a weight above 0, or requests for it go nowhere",
    ),
    Rule(
        at=("spec",),
        field="spec.adapters",
        cel="!has(self.adapters) || self.adapters.all(a, !has(a.model) || a.model == a.name || "
        "!self.adapters.exists(b, (has(b.model) ? b.model : b.name) == a.name))",
        holds=lambda name, spec: _names_are_unambiguous(spec),
        message="an adapter with another model gives its own name away: no other may have it as its model",
    ),
)
