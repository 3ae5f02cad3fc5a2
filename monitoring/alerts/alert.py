"""What an alert is, and the rules made of alerts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml

from monitoring.catalogue import metrics_of

RUNBOOKS: Final = "docs/runbooks"
"""Where the pages are; the chart puts the value ``prometheusRule.runbooks`` in its place."""
SERVICE: Final = "namespace, serving_bladellm_io_name"
"""Labels that tell services apart, as the chart's PodMonitors set them."""
_WIDTH: Final = 1000
_WORDS: Final = {
    "namespace": "NAMESPACE",
    "serving_bladellm_io_name": "SERVICE",
    "service_namespace": "NAMESPACE",
    "service_name": "SERVICE",
    "pod": "POD",
    "kind": "a kind",
}
_NAMES: Final = {"NAMESPACE/SERVICE": "a service", "Engine NAMESPACE/POD": "an engine", "NAMESPACE/POD": "a pod"}
"""What stands for labels in the table of contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. ``wait``: how long it has to be true. ``summary`` and ``text`` are Prometheus' templates."""

    name: str
    expression: str
    wait: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    text: str

    def rule(self) -> dict[str, Any]:
        """It as a rule of Prometheus.

        Raises:
            ValueError: it names a metric that no program exposes.
        """
        metrics_of(self.expression)
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.text,
                "runbook_url": f"{RUNBOOKS}/{self.name}.md",
            },
        }


def contents(groups: Mapping[str, Sequence[Alert]]) -> str:
    """The table of contents of the runbook pages."""
    rows = ["| Alert | Severity | Pending for | |", "|---|---|---|---|"]
    for group in groups.values():
        for each in group:
            words = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: _WORDS[match[1]], each.summary)
            for name, meant in _NAMES.items():
                words = words.replace(name, meant)
            summary = words[0].upper() + words[1:]
            rows.append(f"| [{each.name}]({each.name}.md) | {each.severity} | {each.wait} | {summary} |")
    return "\n".join(rows) + "\n"


def rules(groups: Mapping[str, Sequence[Alert]]) -> str:
    """A file of rules, the alerts by group."""
    found = {"groups": [{"name": name, "rules": [each.rule() for each in group]} for name, group in groups.items()]}
    return yaml.safe_dump(found, sort_keys=False, width=_WIDTH, allow_unicode=True)
