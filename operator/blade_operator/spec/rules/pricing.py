"""Rules of ``spec.pricing``."""

from __future__ import annotations

from typing import Final

from blade_operator.spec.rules.rule import Rule

PRICING_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        at=("spec",),
        field="spec.pricing",
        cel="!has(self.pricing) || has(self.pricing.perEngineHour) != has(self.pricing.perGpuHour)",
        holds=lambda name, spec: (
            spec.pricing is None or (spec.pricing.per_engine_hour is None) != (spec.pricing.per_gpu_hour is None)
        ),
        message="set exactly one of perEngineHour and perGpuHour",
    ),
    Rule(
        at=("spec",),
        field="spec.pricing.perGpuHour",
        cel="!has(self.pricing) || !has(self.pricing.perGpuHour) || "
        "(has(self.engine) && has(self.engine.gpus) && self.engine.gpus.count > 0)",
        holds=lambda name, spec: (
            spec.pricing is None or spec.pricing.per_gpu_hour is None or spec.engine.gpus.count > 0
        ),
        message="is of GPUs, which these engines have none of: set perEngineHour",
    ),
)
