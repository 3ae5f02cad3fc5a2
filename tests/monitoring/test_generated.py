"""What is generated: it is current, and Grafana's own types read it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from monitoring_support.prometheus import promtool

from monitoring import generate
from monitoring.dashboards.panels import Page, Panel, Row, rendered
from monitoring.generate import CHART, PAGES, ROOT


def shown(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / CHART / f"dashboards/{name}.json").read_text(encoding="utf-8")))


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_everything_is_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0
    assert set(generate.stale(tmp_path)) == set(generate.files())


def test_a_stale_file_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(generate, "ROOT", ROOT)
    monkeypatch.setattr(generate, "reference", lambda: "another page")
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/metrics.md is stale: run python -m monitoring.generate\n"


@pytest.mark.parametrize("name", PAGES)
def test_grafanas_own_types_read_a_dashboard_and_write_the_same(name: str) -> None:
    register_default_plugins()
    dashboard = shown(name)
    read = Dashboard.from_json(dashboard)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == dashboard
    assert read.uid == f"bladellm-{name}"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.parametrize("name", PAGES)
def test_panels_do_not_overlap_and_fill_the_width(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in shown(name)["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(0 <= x < 24 for x, _ in cells), panel["title"]
        taken |= cells
    height = max(y for _, y in taken) + 1
    assert len(taken) > 0.9 * 24 * height


@pytest.mark.parametrize("name", PAGES)
def test_every_panel_has_a_source_a_text_and_queries_of_the_selected(name: str) -> None:
    variables = {each["name"] for each in shown(name)["templating"]["list"]}
    assert "datasource" in variables
    titles = [panel["title"] for panel in panels(shown(name))]
    rows = [panel["title"] for panel in shown(name)["panels"] if panel["type"] == "row"]
    assert len(set(titles)) >= len(titles) - 6  # a number of the first row may have a plot of its own below
    assert rows[0] == "Now"
    for panel in panels(shown(name)):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len(panel["description"].split()) > 1
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used == variables - {"datasource"}, panel["title"]
            assert not re.search(r"\b(SELECTED|RATE)\b", target["expr"])


def test_a_dashboard_of_what_nobody_exposes_is_refused() -> None:
    panel = Panel(title="Nonsense", queries={"": "blade_llm_nonsense"})
    page = Page(uid="x", title="x", text="x", variables={}, rows=(Row("x", (panel,)),))
    with pytest.raises(ValueError, match="no program exposes blade_llm_nonsense"):
        rendered(page)


def test_the_chart_has_exactly_these_files() -> None:
    assert {file.stem for file in (ROOT / CHART / "dashboards").iterdir()} == set(PAGES)
    groups = yaml.safe_load((ROOT / generate.RULES).read_text(encoding="utf-8"))["groups"]
    assert [group["name"] for group in groups] == list(generate.ALERTS)


def test_the_pages_configuration_is_one_of_prometheus_and_scrapes_whatever_has_alerts(tmp_path: Path) -> None:
    """The API server's part is left out: Debian's Prometheus cannot discover pods."""
    page = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(scrape_configs:.*?)```", page, re.DOTALL)
    configuration = yaml.safe_load(block)
    for job in configuration["scrape_configs"]:
        assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
        assert {"namespace", "pod"} <= {each.get("target_label") for each in job["relabel_configs"]}
    assert [job["job_name"] for job in configuration["scrape_configs"]] == ["bladellm", "bladellm-operator"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    (tmp_path / "alerts.yaml").write_text((ROOT / CHART / "files/alerts.yaml").read_text())
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
