"""Alerts about a node in which several partitions have jobs."""

from __future__ import annotations

from typing import Any

import pytest

from perfd.aggregator.group.merging import merged, merged_fleet
from perfd.model import JOB_LABEL


def alert(
    fired: float, *, resolved: float | None = None, name: str = "PerfdGpuTooHot", **labels: str
) -> dict[str, Any]:
    """An alert as a partition lists it."""
    return {
        "job": labels.get(JOB_LABEL),
        "labels": {"alertname": name, "severity": "critical", **labels},
        "fired_at_unix_s": fired,
        "resolved_at_unix_s": resolved,
    }


def listed(*partitions: list[dict[str, Any]]) -> list[tuple[str | None, float]]:
    documents = [{"alerts": alerts, "count": len(alerts)} for alerts in partitions]
    found = merged("alerts", documents, ())
    assert found["count"] == len(found["alerts"])
    return [(one["job"], one["fired_at_unix_s"]) for one in found["alerts"]]


def test_a_node_s_alert_appears_once_and_is_that_of_the_gpu_s_job() -> None:
    first = [alert(10.0, node="n0", gpu="3")]
    second = [alert(12.0, node="n0", gpu="3", perfd_job="llm", namespace="a", rank="3")]
    assert listed(first, second, [alert(11.0, node="n0", gpu="3")]) == [("llm", 12.0)]
    assert listed(second, first) == [("llm", 12.0)]


def test_without_a_job_the_one_that_fired_first_stays() -> None:
    assert listed([alert(11.0, node="n0")], [alert(10.0, node="n0")]) == [(None, 10.0)]


@pytest.mark.parametrize(
    "other",
    [
        alert(10.0, node="n1", gpu="3"),
        alert(10.0, node="n0", gpu="4"),
        alert(10.0, node="n0", gpu="3", name="PerfdGpuPowerBrake"),
        alert(31.0, node="n0", gpu="3"),
        alert(10.0, node="n0", gpu="3", perfd_job="other"),
    ],
)
def test_another_alert_stays(other: dict[str, Any]) -> None:
    one = alert(20.0, resolved=30.0, node="n0", gpu="3", perfd_job="llm")
    assert len(listed([one], [other])) == 2


def test_firings_of_one_partition_and_alerts_about_no_node_stay() -> None:
    again = [alert(10.0, resolved=30.0, node="n0"), alert(20.0, resolved=30.0, node="n0")]
    assert len(listed(again, [])) == 2
    failing = alert(10.0, name="PerfdExporterFailing", exporter="wandb")
    assert len(listed([failing], [failing])) == 2


def test_the_page_of_all_jobs_shows_it_once() -> None:
    document = {
        "jobs": [],
        "alerts": [alert(10.0, node="n0")],
        "agents": {"count": 1, "connected": 1},
        "servers": {"count": 0, "up": 0},
    }
    assert len(merged_fleet([document, document], {}, ())["alerts"]) == 1
