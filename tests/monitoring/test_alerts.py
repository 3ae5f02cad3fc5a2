"""Alerts: each fires when it should, does not otherwise, waits as long as it says, and has a page that helps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from monitoring_support.alert_cases import CASES, Case, Series
from monitoring_support.prometheus import promtool, rule_tests

from monitoring.alerts.alert import RUNBOOKS, Alert
from monitoring.generate import ALERTS, ROOT, RULES

EVERY = {alert.name: alert for group in ALERTS.values() for alert in group}


def minutes(alert: Alert) -> int:
    assert alert.wait.endswith("m")
    return int(alert.wait[:-1])


def case(alert: str, series: Series, when: int, labels: dict[str, str] | None) -> dict[str, Any]:
    """``labels``: of the alert that fires then; None: it does not."""
    firing = [] if labels is None else [{"labels": f"{{{_written(labels)}}}", "value": 1}]
    query = f'last_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[1m])'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{when}m", "exp_samples": _named(firing)}],
    }


def _written(labels: dict[str, str]) -> str:
    return ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))


def _named(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**sample, "labels": f"ALERTS{sample['labels']}"} for sample in samples]


def whole(alert: Alert, labels: dict[str, str]) -> dict[str, str]:
    return {"alertname": alert.name, "alertstate": "firing", "severity": alert.severity, **labels}


def run(tmp_path: Path, cases: list[dict[str, Any]]) -> None:
    file = tmp_path / "tests.yaml"
    file.write_text(rule_tests(cases, ROOT / RULES))
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_rules_are_sound() -> None:
    assert f"SUCCESS: {len(EVERY)} rules found" in promtool("check", "rules", str(ROOT / RULES))


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(EVERY)
    assert sum(len(group) for group in ALERTS.values()) == len(EVERY)


@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str, tmp_path: Path) -> None:
    tried: Case = CASES[name]
    run(tmp_path, [case(name, tried.bad, tried.minutes, whole(EVERY[name], dict(tried.labels)))])


@pytest.mark.parametrize("name", CASES)
def test_it_does_not_fire_when_all_is_well(name: str, tmp_path: Path) -> None:
    tried: Case = CASES[name]
    run(tmp_path, [case(name, series, tried.minutes, None) for series in (tried.good, *tried.also_good)])


@pytest.mark.parametrize("name", [name for name, alert in EVERY.items() if alert.wait != "0m"])
def test_it_does_not_fire_at_once(name: str, tmp_path: Path) -> None:
    run(tmp_path, [case(name, CASES[name].bad, minutes(EVERY[name]) - 1, None)])


def test_without_any_operator_there_is_no_leader(tmp_path: Path) -> None:
    alert = EVERY["BladeOperatorNoLeader"]
    run(tmp_path, [case(alert.name, {"up": "1x90"}, 60, whole(alert, {}))])


@pytest.mark.parametrize("name", EVERY)
def test_it_has_a_page_that_says_what_it_means_how_to_look_and_what_to_do(name: str) -> None:
    alert = EVERY[name]
    assert alert.rule()["annotations"]["runbook_url"] == f"{RUNBOOKS}/{name}.md"
    text = (ROOT / RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["What it means", "How to look", "What to do"]
    assert all(len(part.split()) > 10 for part in text.split("\n## ")[1:])
    assert alert.severity in text


def test_there_is_no_page_of_an_alert_that_is_gone() -> None:
    pages = {page.stem for page in (ROOT / RUNBOOKS).glob("*.md")}
    assert pages == {"README", *EVERY}


def test_texts_read_well(tmp_path: Path) -> None:
    """Prometheus fills in names and numbers."""
    tried = CASES["BladeServiceErrors"]
    expected = {
        "exp_labels": {"severity": "critical", **tried.labels},
        "exp_annotations": {
            "summary": "team/demo answers with errors",
            "description": "10% of the requests ended with a status of 500 or more, for 5 minutes.",
            "runbook_url": "docs/runbooks/BladeServiceErrors.md",
        },
    }
    rule = {"eval_time": "30m", "alertname": "BladeServiceErrors", "exp_alerts": [expected]}
    series = [{"series": name, "values": values} for name, values in tried.bad.items()]
    run(tmp_path, [{"interval": "1m", "input_series": series, "alert_rule_test": [rule]}])
