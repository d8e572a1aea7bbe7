from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from perfd.collector import ColumnKind
from perfd.metrics.exposition import entity_labels, exported_name, metrics_page, process_registry
from perfd.model import Scope

TEXT, OPENMETRICS = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def lost(length: int = 1) -> Iterator[Metric]:
    family = Metric("perfd_lost", "Lost.", "counter")
    for number in range(length):
        family.add_sample("perfd_lost_total", {"node": f"n{number:06d}"}, 2.0)
    yield family


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("text/plain", TEXT),
        ("*/*", TEXT),
        (PROMETHEUS, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;escaping=dots", OPENMETRICS),
        # A version of the future, and what is none.
        ("application/openmetrics-text;version=2.0.0", TEXT),
        (
            "application/openmetrics-text;version=99.0.0,application/openmetrics-text;version=1.0.0",
            OPENMETRICS,
        ),
        ("application/openmetrics-text;version=x y", TEXT),
    ],
)
def test_the_format_is_the_newest_that_client_and_perfd_know(accept: str, content_type: str) -> None:
    page = metrics_page(process_registry(lost), {"accept": accept})
    assert page.content_type.startswith(content_type)
    assert "dots" not in page.content_type
    assert (b"# EOF" in page.body) == (content_type == OPENMETRICS)


def test_text_that_is_rendered_already_is_part_of_the_page_in_its_format() -> None:
    def rendered(openmetrics: bool) -> bytes:
        name = "perfd_fast" if openmetrics else "perfd_fast_total"
        return f"# HELP {name} Fast.\n# TYPE {name} counter\nperfd_fast_total 1.0\n".encode()

    for accept, parse in ((TEXT, text_families), (OPENMETRICS, openmetrics_families)):
        page = metrics_page(process_registry(lost), {"accept": accept}, rendered)
        found = {family.name: family.type for family in parse(page.body.decode())}
        assert (found["perfd_fast"], found["perfd_lost"], found["process_cpu_seconds"]) == ("counter",) * 3


def test_a_registry_is_of_its_own() -> None:
    names = {family.name for family in process_registry(lost).collect()}
    assert {"perfd_lost", "process_cpu_seconds", "python_info", "python_gc_collections"} <= names
    assert "perfd_lost" not in {family.name for family in process_registry().collect()}


@pytest.mark.parametrize(
    ("scope", "column", "kind", "name"),
    [
        (Scope.GPU, "power_w", ColumnKind.GAUGE, "perfd_gpu_power_watts"),
        (Scope.GPU, "energy_j", ColumnKind.COUNTER, "perfd_gpu_energy_joules_total"),
        (Scope.GPU, "sm_active_ratio", ColumnKind.GAUGE, "perfd_gpu_sm_active_ratio"),
        (Scope.GPU, "sm_clock_hz", ColumnKind.GAUGE, "perfd_gpu_sm_clock_hertz"),
        (Scope.GPU, "nvlink_tx_bytes_per_s", ColumnKind.GAUGE, "perfd_gpu_nvlink_tx_bytes_per_second"),
        (
            Scope.GPU,
            "clocks_limited_sw_power_s",
            ColumnKind.COUNTER,
            "perfd_gpu_clocks_limited_sw_power_seconds_total",
        ),
        (Scope.NODE, "cpu_ratio", ColumnKind.GAUGE, "perfd_node_cpu_ratio"),
        (Scope.NIC, "rx_bytes_total", ColumnKind.COUNTER, "perfd_nic_rx_bytes_total"),
    ],
)
def test_exported_names_spell_units_out(scope: Scope, column: str, kind: ColumnKind, name: str) -> None:
    assert exported_name(scope, column, kind) == name


def test_labels_name_what_a_row_is_about() -> None:
    node = {"node": "n1", "instance": "n1"}
    assert entity_labels(Scope.GPU, "0/3", "n1") == {**node, "gpu": "0/3"}
    assert entity_labels(Scope.NODE, "", "n1") == node
    assert entity_labels(Scope.NIC, "mlx5_0/1", "n1") == {**node, "device": "mlx5_0/1"}
    assert entity_labels(Scope.RANK, "team/llm/7", "n1") == {**node, "perfd_job": "team/llm", "rank": "7"}
