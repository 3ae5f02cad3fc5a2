"""Panels and dashboards of few words, by Grafana's own builders.

In queries ``SELECTED`` stands for the labels that the dashboard's variables choose, and ``RATE`` for the interval that
fits what is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboards
from grafana_foundation_sdk.models import heatmap as heatmaps
from grafana_foundation_sdk.models import prometheus as queries

from monitoring.catalogue import metrics_of

PERCENTILES: Final = (50, 90, 99)
_SOURCE: Final = dashboards.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT: Final = 8
_WIDTH: Final = 24

Unit = Literal["short", "reqps", "s", "percentunit", "bytes", "Bps", "cps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. ``queries``: each with its legend; a stat has one, which is reduced to its last value."""

    title: str
    queries: Mapping[str, str]
    unit: Unit = "short"
    text: str = ""
    """What it shows; empty: the help of its first metric."""
    kind: Literal["lines", "stack", "stat", "heatmap"] = "lines"
    width: int = 8
    red_above: float | None = None
    """A stat's value from which it is red."""
    red_below: float | None = None
    top: float | None = None
    """The axis ends here."""


@dataclass(frozen=True, slots=True)
class Row:
    """A title over panels."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A dashboard. ``variables``: expressions for ``label_values`` by variable, in their order, each with its label."""

    uid: str
    title: str
    text: str
    variables: Mapping[str, tuple[str, str]]
    rows: Sequence[Row]

    @property
    def selected(self) -> str:
        """The labels by which its variables choose series."""
        return ",".join(f'{label}=~"${name}"' for name, (_, label) in self.variables.items())

    def expressions(self) -> list[str]:
        """Every query, with Grafana's variables in it."""
        panels = [panel for row in self.rows for panel in row.panels]
        return [_filled(query, self.selected) for panel in panels for query in panel.queries.values()]


def percentiles(name: str, also: str = "") -> dict[str, str]:
    """Queries for percentiles of a histogram. ``also``: further labels to sum by, with a comma before."""
    return {
        f"p{part}": f"histogram_quantile({part / 100}, sum by (le{also}) (rate({name}_bucket{{SELECTED}}[RATE])))"
        for part in PERCENTILES
    }


def rendered(page: Page) -> str:
    """The dashboard's JSON.

    Raises:
        ValueError: a query names a metric that no program exposes.
    """
    builder = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.text)
        .tags(["bladellm"])
        .timezone("browser")
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(dashboards.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(
            dashboard.DashboardLink("BladeLLM")
            .type(dashboards.DashboardLinkType.DASHBOARDS)
            .tags(["bladellm"])
            .as_dropdown(True)
            .keep_time(True)
            .include_vars(True)
        )
    )
    for name, (expression, label) in page.variables.items():
        builder = builder.with_variable(
            dashboard.QueryVariable(name)
            .label(name.capitalize())
            .query(f"label_values({expression}, {label})")
            .datasource(_SOURCE)
            .refresh(dashboards.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(dashboards.VariableSort.ALPHABETICAL_ASC)
            .include_all(True)
            .all_value(".*")
            .multi(True)
            .current(dashboards.VariableOption(selected=True, text="All", value="$__all"))
        )
    ids, y = count(1), 0
    for row in page.rows:
        position = dashboards.GridPos(x=0, y=y, w=_WIDTH, h=1)
        builder = builder.with_row(dashboard.Row(row.title).id(next(ids)).grid_pos(position))
        y += 1
        x = 0
        for panel in row.panels:
            height = _HEIGHT // 2 if panel.kind == "stat" else _HEIGHT
            if x + panel.width > _WIDTH:
                x, y = 0, y + height
            position = dashboards.GridPos(x=x, y=y, w=panel.width, h=height)
            builder = builder.with_panel(_panel(panel, page.selected).id(next(ids)).grid_pos(position))
            x += panel.width
        y += height
    text = json.dumps(builder.build(), cls=JSONEncoder, sort_keys=True, indent=2, ensure_ascii=False)
    return f"{text}\n"


def _filled(query: str, selected: str) -> str:
    return query.replace("SELECTED", selected).replace("RATE", "$__rate_interval")


def _panel(panel: Panel, selected: str) -> timeseries.Panel | stat.Panel | heatmap.Panel:
    metrics = [spec for query in panel.queries.values() for spec in metrics_of(query)]
    text = panel.text or (metrics[0].text if metrics else panel.title)
    builder: timeseries.Panel | stat.Panel | heatmap.Panel
    if panel.kind == "stat":
        builder = _stat(panel)
    elif panel.kind == "heatmap":
        builder = _heatmap(panel)
    else:
        builder = _lines(panel)
    builder = builder.title(panel.title).description(text).datasource(_SOURCE)
    for number, (legend, query) in enumerate(panel.queries.items()):
        target = prometheus.Dataquery().expr(_filled(query, selected)).legend_format(legend).ref_id(chr(65 + number))
        target = target.instant() if panel.kind == "stat" else target.range()
        if panel.kind == "heatmap":
            target = target.format(queries.PromQueryFormat.HEATMAP)
        builder = builder.with_target(target)
    return builder


def _lines(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(models.LegendDisplayMode.LIST).show_legend(True)
    builder = (
        timeseries.Panel()
        .unit(panel.unit)
        .min(0)
        .line_width(1)
        .fill_opacity(40 if panel.kind == "stack" else 5)
        .show_points(models.VisibilityMode.NEVER)
        .legend(legend.placement(models.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"]))
        .tooltip(common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI).sort(models.SortOrder.DESCENDING))
    )
    if panel.top is not None:
        builder = builder.max(panel.top)
    if panel.kind == "stack":
        builder = builder.stacking(common.StackingConfig().mode(models.StackingMode.NORMAL).group("A"))
    return builder


def _stat(panel: Panel) -> stat.Panel:
    steps = [dashboards.Threshold(value=None, color="red" if panel.red_below is not None else "green")]
    if panel.red_below is not None:
        steps.append(dashboards.Threshold(value=panel.red_below, color="green"))
    if panel.red_above is not None:
        steps.append(dashboards.Threshold(value=panel.red_above, color="red"))
    return (
        stat.Panel()
        .unit(panel.unit)
        .no_value("none")
        .graph_mode(models.BigValueGraphMode.NONE)
        .color_mode(models.BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .thresholds(dashboard.ThresholdsConfig().mode(dashboards.ThresholdsMode.ABSOLUTE).steps(steps))
    )


def _heatmap(panel: Panel) -> heatmap.Panel:
    return (
        heatmap.Panel()
        .calculate(False)
        .cell_gap(1)
        .show_tooltip()
        .scale_distribution(common.ScaleDistributionConfig().type(models.ScaleDistribution.LINEAR))
        .y_axis(heatmap.YAxisConfig().unit(panel.unit).axis_placement(models.AxisPlacement.LEFT))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmaps.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .steps(64)
            .exponent(0.5)
            .fill("dark-orange")
            .reverse(False)
        )
    )
