"""Pods with GPUs: what each uses of them."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from perfd_dashboards.panels import (
    BYTES,
    COUNT,
    PERCENT,
    PLACE,
    Column,
    board,
    choice,
    graph,
    page_link,
    place_choices,
    q,
    rows,
)

_SERIES = "perfd_gpu_memory_used_bytes"
_BY_POD = "cluster, namespace, pod"
_PODS = f'{PLACE}, pod!="", pod=~"$pod"'
_NAME = "{{pod}} GPU {{gpu}} of {{node}}"


def dashboard() -> Dashboard:
    """The dashboard `perfd-pods`."""
    pods = board("pods", "perfd: pods", "GPUs by the pod that has them.")
    for variable in place_choices(_SERIES):
        pods = pods.with_variable(variable)
    names = f'label_values({_SERIES}{{{PLACE}, pod!=""}}, pod)'
    pods = pods.with_variable(choice("pod", "Pod", names, many=True)).link(page_link("Page", "/"))
    return _gpus(_pods(pods))


def _pods(pods: Dashboard) -> Dashboard:
    columns = (
        Column(title="GPUs", expr=f"count by ({_BY_POD}) ({_SERIES}{{{_PODS}}})", unit=COUNT),
        Column(
            title="SM active", expr=f"avg by ({_BY_POD}) (perfd_gpu_sm_active_ratio{{{_PODS}}})", unit=PERCENT
        ),
        Column(
            title="Tensor active",
            expr=f"avg by ({_BY_POD}) (perfd_gpu_tensor_active_ratio{{{_PODS}}})",
            unit=PERCENT,
        ),
        Column(title="Memory", expr=f"sum by ({_BY_POD}) ({_SERIES}{{{_PODS}}})", unit=BYTES),
        Column(title="Power", expr=f"sum by ({_BY_POD}) (perfd_gpu_power_watts{{{_PODS}}})", unit="watt"),
    )
    return pods.with_panel(
        rows("Pods", "Pod", "pod", columns, help_text="The newest numbers of each pod that has a GPU.")
    )


def _gpus(pods: Dashboard) -> Dashboard:
    return (
        pods.with_row(Row("GPUs"))
        .with_panel(
            graph(
                "SM active",
                q(f"perfd_gpu_sm_active_ratio{{{_PODS}}}", _NAME),
                unit=PERCENT,
                most=1.0,
                help_text="Share of streaming multiprocessors with a warp resident.",
            )
        )
        .with_panel(
            graph(
                "Memory used",
                q(f"{_SERIES}{{{_PODS}}}", _NAME),
                unit=BYTES,
                help_text="By all processes on the GPU.",
            )
        )
        .with_panel(
            graph(
                "Power",
                q(f"perfd_gpu_power_watts{{{_PODS}}}", _NAME),
                unit="watt",
                help_text="Of the whole GPU.",
            )
        )
        .with_panel(
            graph(
                "Errors of memory",
                q(f"increase(perfd_gpu_ecc_uncorrected_errors_total{{{_PODS}}}[$__rate_interval])", _NAME),
                unit=COUNT,
                help_text="That could not be corrected.",
            )
        )
    )
