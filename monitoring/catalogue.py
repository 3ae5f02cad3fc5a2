"""The catalogues of the three programs as one."""

from __future__ import annotations

import re
from typing import Final

from blade_llm.api.metrics.catalogue import SPECS as ENGINE
from blade_operator.metrics import SPECS as OPERATOR
from blade_protocol.metrics import MetricSpec
from blade_router.observability.catalogue import SPECS as ROUTER

PROGRAMS: Final = {"engine": tuple(ENGINE), "router": tuple(ROUTER), "operator": tuple(OPERATOR)}
"""The metrics of each program."""

_NAME: Final = re.compile(r"\b(?:blade_(?:llm|router|operator)|process)_[a-z0-9_]+")
_PROCESS: Final = frozenset(
    {
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
    }
)
"""What prometheus-client says of every process, as far as it is shown."""


def exposed(spec: MetricSpec) -> tuple[str, ...]:
    """Names of a metric's samples."""
    if spec.kind == "counter":
        return (f"{spec.name}_total",)
    if spec.kind == "histogram":
        return tuple(f"{spec.name}_{suffix}" for suffix in ("bucket", "sum", "count"))
    return (spec.name,)


SAMPLES: Final = {name: spec for specs in PROGRAMS.values() for spec in specs for name in exposed(spec)}
"""The metric of each name that Prometheus knows."""


def metrics_of(expression: str) -> list[MetricSpec]:
    """The metrics that an expression of PromQL is about, in their order.

    Raises:
        ValueError: it names one that no program exposes.
    """
    found = list(dict.fromkeys(_NAME.findall(expression)))
    for name in found:
        if name not in SAMPLES and name not in _PROCESS:
            raise ValueError(f"{expression}: no program exposes {name}; correct it, or add it to a catalogue")
    return [SAMPLES[name] for name in found if name in SAMPLES]
