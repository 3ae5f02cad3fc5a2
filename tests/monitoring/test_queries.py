"""Every query of every dashboard, and every metric of every alert, in a real Prometheus over real scrapes."""

from __future__ import annotations

import re

import pytest
from monitoring_support.prometheus import promtool

from blade_protocol.metrics import MetricSpec
from monitoring.alerts.alert import Alert
from monitoring.catalogue import PROGRAMS, SAMPLES, exposed, metrics_of
from monitoring.generate import ALERTS, PAGES

from .conftest import Scraped

pytestmark = pytest.mark.timeout(400)  # the first one starts everything

EXPRESSIONS = [(name, each) for name, page in PAGES.items() for each in page.expressions()]
EVERY_ALERT = [alert for group in ALERTS.values() for alert in group]


def plain(expression: str) -> str:
    """It without Grafana's variables, each of which stands for everything."""
    filled = expression.replace("$__rate_interval", "1m")
    return re.sub(r"\$[a-z]+", ".*", filled)


@pytest.mark.parametrize(("page", "expression"), EXPRESSIONS)
def test_every_query_of_a_dashboard_finds_numbers(scraped: Scraped, page: str, expression: str) -> None:
    assert "$" not in plain(expression)
    assert scraped.prometheus.has_numbers(plain(expression))


@pytest.mark.parametrize("page", PAGES)
def test_variables_offer_what_was_scraped(scraped: Scraped, page: str) -> None:
    for expression, label in PAGES[page].variables.values():
        found = {each["metric"].get(label) for each in scraped.prometheus.query(plain(expression))}
        assert found
        assert None not in found


@pytest.mark.parametrize("alert", EVERY_ALERT, ids=lambda alert: alert.name)
def test_every_alert_is_about_what_there_is(scraped: Scraped, alert: Alert) -> None:
    expression = alert.expression
    scraped.prometheus.query(expression)
    names = re.findall(r"\bblade_[a-z_]+|\bup\b", expression)
    assert names
    for name in names:
        labels = {label for each in scraped.prometheus.query(name) for label in each["metric"]}
        assert labels, f"nothing has the name {name}"
        matched = re.findall(rf"{name}{{([^}}]*)}}", expression)
        assert {part.partition("=")[0].rstrip("!~") for each in matched for part in each.split(",")} <= labels
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        assert {label.strip() for each in grouped for label in each.split(",")} - {"le"} <= labels | {"pod"}


def test_prometheus_evaluates_the_rules(scraped: Scraped) -> None:
    rules = {rule["name"]: rule for rule in scraped.prometheus.rules()}
    assert set(rules) == {alert.name for alert in EVERY_ALERT}
    assert {rule["health"] for rule in rules.values()} == {"ok"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_promtool_has_nothing_to_say_of_what_is_exposed(scraped: Scraped, program: str) -> None:
    assert promtool("check", "metrics", text=scraped.pages[program]) == ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_catalogue_is_what_is_exposed(scraped: Scraped, program: str) -> None:
    """Names, types, help and labels, of every metric; all of which have samples."""
    from prometheus_client.parser import text_string_to_metric_families

    families = {family.name: family for family in text_string_to_metric_families(scraped.pages[program])}
    ours = {name: family for name, family in families.items() if name.startswith("blade_")}
    created = {name for name in ours if name.endswith("_created")}  # prometheus-client's, beside the operator's
    specs = {spec.name: spec for spec in PROGRAMS[program]}
    assert set(ours) - created == set(specs)
    for name, spec in specs.items():
        family = ours[name]
        assert (family.type, family.documentation) == (spec.kind, spec.text)
        assert {sample.name for sample in family.samples} - {f"{name}_created"} == set(exposed(spec))
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels == {*spec.labels, *(["model_name"] if program == "engine" else [])}
        assert spec.unit in ("", "tokens") or name.endswith(f"_{spec.unit}")


def test_every_metric_is_shown_or_watched() -> None:
    """What nobody looks at need not be exposed: each metric is in a dashboard or an alert."""
    every = [*(expression for _, expression in EXPRESSIONS), *(alert.expression for alert in EVERY_ALERT)]
    shown: set[MetricSpec] = {spec for expression in every for spec in metrics_of(expression)}
    assert {spec.name for spec in SAMPLES.values()} - {spec.name for spec in shown} == set()


def test_a_query_of_what_nobody_exposes_is_refused() -> None:
    with pytest.raises(ValueError, match="no program exposes blade_router_nonsense_total; correct it"):
        metrics_of("sum(rate(blade_router_nonsense_total[5m]))")
