"""Rules of ``spec.engine.lora`` and ``spec.adapters`` that span fields."""

from __future__ import annotations

from typing import Final

from blade_operator.spec.adapter_fields import Lora
from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.rules.place import cel_readable, readable
from blade_operator.spec.rules.rule import Rule


def _lora(spec: LLMServiceSpec) -> Lora:
    return spec.engine.lora or Lora()


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
        field="spec.model.servedNames",
        cel="!has(self.adapters) || !has(self.model.servedNames) || "
        "!self.adapters.exists(a, a.name in self.model.servedNames)",
        holds=lambda name, spec: not {adapter.name for adapter in spec.adapters} & {*spec.model.served_names},
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
)
