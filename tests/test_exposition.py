from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from perfd.collector import ColumnKind
from perfd.metrics.exposition import MetricFamily, Sample, entity_labels, exported_name, number, render
from perfd.model import Scope

# Prometheus's text format is made of lines, and a client's parser splits at every kind of line end.
label_values = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
)


def parsed(families: list[MetricFamily]) -> list[tuple[str, dict[str, str], float]]:
    text = render(families).decode()
    return [
        (sample.name, dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


@given(value=label_values, help_text=label_values)
def test_a_parser_reads_back_every_label_value(value: str, help_text: str) -> None:
    sample = Sample(value=1.5, labels={"node": value, "gpu": "0"})
    family = MetricFamily(name="perfd_x_ratio", help=help_text, kind=ColumnKind.GAUGE, samples=[sample])
    labels = {"node": value, "gpu": "0"} if value else {"gpu": "0"}
    assert parsed([family]) == [("perfd_x_ratio", labels, 1.5)]


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_number_reads_back_exactly(value: float) -> None:
    back = float(number(value))
    assert back == value or (math.isnan(back) and math.isnan(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (3.0, "3"), (0.1, "0.1"), (1e300, "1e+300")],
)
def test_numbers_are_written_as_prometheus_writes_them(value: float, text: str) -> None:
    assert number(value) == text


def test_a_family_without_samples_is_left_out() -> None:
    empty = MetricFamily(name="perfd_empty", help="Nothing.", kind=ColumnKind.GAUGE, samples=[])
    assert render([empty]) == b""


def test_an_exposition_says_help_and_type_before_the_samples() -> None:
    family = MetricFamily(
        name="perfd_agent_dropped_records_total",
        help="Records\nlost.",
        kind=ColumnKind.COUNTER,
        samples=[Sample(value=2, labels={})],
    )
    assert render([family]).decode().splitlines() == [
        r"# HELP perfd_agent_dropped_records_total Records\nlost.",
        "# TYPE perfd_agent_dropped_records_total counter",
        "perfd_agent_dropped_records_total 2",
    ]


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


def test_labels_tell_what_a_row_is_about() -> None:
    assert entity_labels(Scope.GPU, "0/3", "n1") == {"node": "n1", "gpu": "0/3"}
    assert entity_labels(Scope.NODE, "", "n1") == {"node": "n1"}
    assert entity_labels(Scope.NIC, "mlx5_0/1", "n1") == {"node": "n1", "device": "mlx5_0/1"}
    assert entity_labels(Scope.RANK, "team/llm/7", "n1") == {"node": "n1", "job": "team/llm", "rank": "7"}
