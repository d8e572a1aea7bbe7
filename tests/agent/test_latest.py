from __future__ import annotations

import math

from agent.support import gpu_table
from prometheus_client import generate_latest

from perfd.agent.collection.latest_samples import LatestSamples
from perfd.collector import Column, ColumnKind
from perfd.metrics.exposition import MetricSource
from perfd.model import RankPlacement, SampleTable, Scope

COLUMNS = [
    Column(scope=Scope.GPU, name="power_w", help="Board power.", source="nvml", absent="Never."),
    Column(
        scope=Scope.GPU,
        name="energy_j",
        help="Energy.",
        source="nvml",
        absent="Before Volta.",
        kind=ColumnKind.COUNTER,
    ),
]


def exposed(latest: LatestSamples, now_unix_ns: int = 0) -> list[str]:
    text = generate_latest(MetricSource(lambda: latest.families(now_unix_ns))).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_the_newest_value_of_each_gpu_is_exposed_with_its_labels() -> None:
    latest = LatestSamples("n1", COLUMNS)
    latest([gpu_table(100.0, 200.0, unix_ns=1)])
    latest([gpu_table(110.0, 210.0, unix_ns=2)])
    assert exposed(latest) == [
        'perfd_gpu_power_watts{gpu="0",instance="n1",node="n1"} 110.0',
        'perfd_gpu_power_watts{gpu="1",instance="n1",node="n1"} 210.0',
    ]


def test_of_several_rows_of_one_gpu_the_last_counts() -> None:
    latest = LatestSamples("n1", COLUMNS)
    latest(
        [
            SampleTable(
                scope=Scope.GPU,
                times_unix_ns=[1, 2, 3],
                entities=["0", "0", "0"],
                columns={"energy_j": [10.0, 20.0, 30.0]},
            )
        ]
    )
    assert exposed(latest) == ['perfd_gpu_energy_joules_total{gpu="0",instance="n1",node="n1"} 30.0']


def test_what_is_absent_is_left_out() -> None:
    latest = LatestSamples("n1", COLUMNS)
    latest([gpu_table(math.nan, 5.0)])
    assert exposed(latest) == ['perfd_gpu_power_watts{gpu="1",instance="n1",node="n1"} 5.0']


def test_job_and_rank_are_labels_once_they_are_known() -> None:
    latest = LatestSamples("n1", COLUMNS)
    latest([RankPlacement(job="llm", rank=9, gpu=1), gpu_table(1.0, 2.0)])
    assert exposed(latest) == [
        'perfd_gpu_power_watts{gpu="0",instance="n1",node="n1"} 1.0',
        'perfd_gpu_power_watts{gpu="1",instance="n1",node="n1",perfd_job="llm",rank="9"} 2.0',
    ]


def test_old_values_leave() -> None:
    latest = LatestSamples("n1", COLUMNS)
    latest([gpu_table(1.0, unix_ns=1_000_000_000)])
    assert exposed(latest, 60_000_000_000)
    assert exposed(latest, 62_000_000_000) == []


def test_a_column_that_two_tables_hold_is_exposed_once_per_gpu() -> None:
    latest = LatestSamples("n1", COLUMNS)
    latest([gpu_table(1.0, unix_ns=1)])
    latest(
        [
            SampleTable(
                scope=Scope.GPU,
                times_unix_ns=[2],
                entities=["0"],
                columns={"power_w": [2.0], "energy_j": [7.0]},
            )
        ]
    )
    assert exposed(latest) == [
        'perfd_gpu_power_watts{gpu="0",instance="n1",node="n1"} 2.0',
        'perfd_gpu_energy_joules_total{gpu="0",instance="n1",node="n1"} 7.0',
    ]


def test_a_wall_clock_that_steps_back_does_not_freeze_the_exposition() -> None:
    latest = LatestSamples("n1", COLUMNS)
    latest([gpu_table(1.0, unix_ns=9_000_000_000_000)])
    latest([gpu_table(2.0, unix_ns=5_000_000_000_000)])
    assert exposed(latest, 5_000_000_000_000) == [
        'perfd_gpu_power_watts{gpu="0",instance="n1",node="n1"} 2.0'
    ]


def test_a_collector_whose_columns_keep_changing_fills_no_memory() -> None:
    latest = LatestSamples("n1", COLUMNS)
    for number in range(1000):
        latest(
            [
                SampleTable(
                    scope=Scope.NODE, times_unix_ns=[1], entities=[""], columns={f"made_up_{number}": [1.0]}
                )
            ]
        )
    assert 1 <= len(exposed(latest)) <= 64
    assert exposed(latest)[-1] == 'perfd_node_made_up_999{instance="n1",node="n1"} 1.0'
