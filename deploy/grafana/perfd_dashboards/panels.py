"""Panels, variables and annotations as perfd's dashboards use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

Panel: TypeAlias = timeseries.Panel | stat.Panel | table.Panel | heatmap.Panel | bargauge.Panel

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
PERCENT, SECONDS, BYTES, RATE, COUNT = "percentunit", "s", "bytes", "Bps", "short"
BY_JOB = "cluster, namespace, perfd_job"
"""The labels that identify a job."""
PLACE = 'cluster=~"$cluster", namespace=~"$namespace"'
"""What the variables of `place_choices` select."""
ONE_JOB = f'{PLACE}, perfd_job="$job"'
WIDTH = 24
"""Columns of a dashboard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """An expression, and what its series are called."""

    expr: str
    legend: str = ""
    instant: bool = False

    def build(self, ref_id: str, *, rows: bool = False) -> prometheus.Dataquery:
        """The target of a panel; with `rows` a table of series."""
        query = prometheus.Dataquery().expr(self.expr).ref_id(ref_id).datasource(SOURCE)
        query = query.legend_format(self.legend or "__auto")
        if rows:
            query = query.format(prometheus_models.PromQueryFormat.TABLE)
        return query.instant() if self.instant or rows else query.range()


def q(expr: str, legend: str = "") -> Query:
    """A query over time."""
    return Query(expr=expr, legend=legend)


def firing(selector: str) -> str:
    """Alerts that fire by job and name, of perfd's own engine or of the Prometheus that evaluates its rules.

    Both have them where both evaluate; each counts once.
    """
    own = f"perfd_alerts_firing{{{selector}}}"
    engine = f'ALERTS{{alertname=~"Perfd.+", alertstate="firing", perfd_job!="", {selector}}}'
    return f"max by ({BY_JOB}, alertname) ({own}) or max by ({BY_JOB}, alertname) ({engine})"


def graph(
    title: str,
    *queries: Query,
    unit: str,
    help_text: str,
    stacked: bool = False,
    most: float | None = None,
    span: int = WIDTH // 2,
) -> timeseries.Panel:
    """Lines over time, or stacked areas."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(help_text)
        .datasource(SOURCE)
        .unit(unit)
        .min(0.0)
        .span(span)
        .height(8)
        .line_width(1)
        .fill_opacity(70 if stacked else 5)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    if most is not None:
        panel = panel.max(most)
    for place, query in enumerate(queries):
        panel = panel.with_target(query.build(_ref_id(place)))
    return panel


def number(
    title: str,
    expr: str,
    *,
    unit: str,
    help_text: str,
    bad_from: float | None = None,
    none: str | None = None,
    span: int = 4,
) -> stat.Panel:
    """One number, with its past behind it; red from `bad_from` on."""
    steps = [Threshold(color="green", value=None)]
    if bad_from is not None:
        steps.append(Threshold(color="red", value=bad_from))
    panel = (
        stat.Panel()
        .title(title)
        .description(help_text)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(4)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(dashboards.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(q(expr).build("A"))
    )
    return panel if none is None else panel.no_value(none)


def bars(title: str, query: Query, *, unit: str, help_text: str, span: int = WIDTH // 2) -> bargauge.Panel:
    """The newest value of each series as a bar."""
    return (
        bargauge.Panel()
        .title(title)
        .description(help_text)
        .datasource(SOURCE)
        .unit(unit)
        .min(0.0)
        .span(span)
        .height(8)
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_scheme(dashboards.FieldColor().mode(FieldColorModeId.FIXED).fixed_color("blue"))
        .with_target(query.build("A"))
    )


def heat(
    title: str, query: Query, *, unit: str, help_text: str, least: float = 0.0, most: float = 1.0
) -> heatmap.Panel:
    """A row for each series, and its value as color: the lightest at `least`, the darkest from `most` on."""
    color = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .fill("dark-orange")
        .exponent(0.5)
        .steps(64)
        .reverse(False)
        .min(least)
        .max(most)
    )
    return (
        heatmap.Panel()
        .title(title)
        .description(help_text)
        .datasource(SOURCE)
        .span(WIDTH // 2)
        .height(8)
        .calculate(False)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common_models.HeatmapCellLayout.UNKNOWN))
        .cell_values(heatmap.CellValues().unit(unit))
        .color(color)
        .with_target(query.build("A"))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: the newest value of an expression, by the table's key."""

    title: str
    expr: str
    unit: str


def rows(
    title: str,
    key: str,
    label: str,
    columns: Sequence[Column],
    *,
    help_text: str,
    link: str | None = None,
    height: int = 8,
) -> table.Panel:
    """A line for each value of a label, with a column of that name; `link` is where its cell leads."""
    panel = table.Panel().title(title).description(help_text).datasource(SOURCE).span(WIDTH).height(height)
    names = {"Time": "", "cluster": "Cluster", "namespace": "Namespace", label: key}
    for place, column in enumerate(columns):
        ref_id = _ref_id(place)
        panel = panel.with_target(Query(expr=column.expr).build(ref_id, rows=True))
        # Grafana calls the value of query A `Value #A` when there are several.
        value = f"Value #{ref_id}"
        names[value] = column.title
        panel = panel.override_by_name(column.title, [DynamicConfigValue(id_val="unit", value=column.unit)])
    if link is not None:
        links = [{"title": "Open", "url": link}]
        panel = panel.override_by_name(key, [DynamicConfigValue(id_val="links", value=links)])
    shown = {name: new for name, new in names.items() if new}
    options = {"excludeByName": {"Time": True}, "renameByName": shown, "indexByName": {}}
    return panel.with_transformation(DataTransformerConfig(id_val="merge", options={})).with_transformation(
        DataTransformerConfig(id_val="organize", options=options)
    )


def board(name: str, title: str, help_text: str) -> dashboards.Dashboard:
    """An empty dashboard `perfd-NAME`, with the variables that each has."""
    return (
        dashboards.Dashboard(title)
        .uid(f"perfd-{name}")
        .description(help_text)
        .tags(["perfd"])
        .time("now-1h", "now")
        .timezone("browser")
        .refresh("10s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboards.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        # What a browser reaches: Grafana itself never asks there.
        .with_variable(text("perfd", "perfd's page", "http://127.0.0.1:9460"))
        .link(
            dashboards.DashboardLink("perfd")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["perfd"])
            .as_dropdown(True)
            .keep_time(True)
            .include_vars(True)
        )
    )


def choice(name: str, label: str, values: str, *, many: bool = False) -> dashboards.QueryVariable:
    """A variable whose values are those of a label; `many` lets several be chosen, all at first."""
    variable = (
        dashboards.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(values)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
    )
    if many:
        everything = VariableOption(text="All", value="$__all", selected=True)
        variable = variable.multi(True).include_all(True).all_value(".*").current(everything)
    return variable


def place_choices(series: str) -> Sequence[dashboards.QueryVariable]:
    """Variables for the clusters and namespaces of a metric; all at first, also where there is no label."""
    return (
        choice("cluster", "Cluster", f"label_values({series}, cluster)", many=True),
        choice("namespace", "Namespace", f"label_values({series}, namespace)", many=True),
    )


def text(name: str, label: str, default: str) -> dashboards.TextBoxVariable:
    """A variable that one types in."""
    return dashboards.TextBoxVariable(name).label(label).default_value(default)


def page_link(title: str, path: str) -> dashboards.DashboardLink:
    """A link at the head of a dashboard to a page of perfd's."""
    link = dashboards.DashboardLink(title).type(DashboardLinkType.LINK).url("${perfd}" + path)
    return link.icon("external link").target_blank(True)


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
    )


def _ref_id(place: int) -> str:
    return chr(ord("A") + place)
