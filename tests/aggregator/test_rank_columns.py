"""What a page gets of a job's ranks: one metric of all, and all metrics of those that are unusual."""

from __future__ import annotations

import json
import math
import statistics
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.aggregator.web_api.charts.rank_columns import METRICS, rank_columns, without_ranks
from perfd.errors import PerfdError
from tests.support.examples import examples
from tests.support.large_job import large_job
from tests.support.page_server import job_entry


def gpu(rank: int | None, place: int, **values: float | None) -> dict[str, Any]:
    return {"node": f"n{place // 8}", "gpu": str(place % 8), "rank": rank, "stage": 0, **values}


def expanded(runs: list[list[Any]]) -> list[Any]:
    return [value for value, count in runs for _ in range(count)]


def test_a_grid_has_one_metric_of_every_rank_at_its_place() -> None:
    job = job_entry("llm", ranks=1024, slow=700)
    found = rank_columns(job, {"metric": "power_w"})
    grid = found["grid"]

    assert found["count"] == 1024
    assert grid["metric"] == "power_w"
    assert grid["ranks"] == [[0, 1024]]
    assert expanded(grid["nodes"]) == [one["node"] for one in job["gpus"]]
    assert grid["gpus"] == [one["gpu"] for one in job["gpus"]]
    assert grid["values"] == [one["power_w"] for one in job["gpus"]]
    assert grid["culprits"] == [700]
    power = found["metrics"]["power_w"]
    assert (power["lowest"], power["highest"]) == (570.0, 650.0)
    assert power["median"] == statistics.median(grid["values"])


def test_without_a_choice_the_grid_has_the_metric_in_which_the_culprit_stands_out() -> None:
    # Its tensor cores are at 1.9 times the median, its power at 1.14 times.
    job = job_entry("llm", ranks=16, slow=7)
    assert rank_columns(job, {})["grid"]["metric"] == "tensor_active_ratio"
    assert rank_columns(job, {"metric": "power_w"})["grid"]["metric"] == "power_w"
    # Others than the culprit do not count.
    job["gpus"][3]["dram_active_ratio"] = 0.99
    assert rank_columns(job, {})["grid"]["metric"] == "tensor_active_ratio"
    assert rank_columns(job_entry("llm", ranks=16), {})["grid"]["metric"] == "sm_active_ratio"


def test_of_many_ranks_only_the_unusual_ones_have_rows_the_culprit_first() -> None:
    job = job_entry("llm", ranks=1024, slow=700)
    job["gpus"][5]["dram_active_ratio"] = 0.1
    found = rank_columns(job, {})

    assert [row["rank"] for row in found["rows"]] == [700, 5]
    assert found["rows"][0]["culprit"]
    assert found["rows"][0]["values"]["power_w"] == 650.0
    assert found["rows"][1]["deviation"]["dram_active_ratio"] == pytest.approx(-0.75)
    assert [row["rank"] for row in found["culprits"]] == [700]
    assert len(json.dumps(found["rows"])) < 2000


@pytest.mark.parametrize(("ranks", "rows"), [(64, 64), (65, 1)])
def test_up_to_64_ranks_all_have_rows(ranks: int, rows: int) -> None:
    found = rank_columns(job_entry("llm", ranks=ranks, slow=3), {"columns": "100"})
    assert len(found["rows"]) == rows
    assert (found["picture"] is None) == (ranks == 64)


def test_a_column_of_the_picture_has_its_most_unusual_rank() -> None:
    job = job_entry("llm", ranks=1024, slow=700)
    found = rank_columns(job, {"columns": "100"})["picture"]
    column = next(i for i in range(100) if i * 1024 // 100 <= 700 < (i + 1) * 1024 // 100)

    assert found["columns"] == len(found["values"]["power_w"]) == 100
    assert found["values"]["power_w"][column] == 650.0
    assert found["deviation"]["power_w"].index(max(found["deviation"]["power_w"])) == column
    assert found["culprits"] == [column]


def test_ranks_of_gpus_nccl_and_timers_are_one_row_each() -> None:
    job = {
        "gpus": [gpu(1, 0, power_w=500.0), gpu(None, 1, power_w=400.0), gpu(0, 2, power_w=300.0)],
        "nccl": {"ranks": [{"rank": 1, "wait_ratio": 0.2}, {"rank": 9, "wait_ratio": 0.4}]},
        "slowdowns": [{"rank": 0, "ratio": 1.5}],
        "bottleneck": {"culprits": [{"kind": "gpu", "id": "n0/1"}]},
        "other_findings": [{"culprits": [{"kind": "node", "id": "n0"}]}],
    }
    found = rank_columns(job, {})

    assert [(row["rank"], row["node"], row["culprit"]) for row in found["rows"]] == [
        (0, "n0", False),
        (1, "n0", False),
        (9, None, False),
        (None, "n0", True),
    ]
    assert found["rows"][0]["values"] == {"slowdown_ratio": 1.5, "power_w": 300.0}
    assert found["rows"][1]["values"] == {"power_w": 500.0, "wait_ratio": 0.2}
    assert found["metrics"]["wait_ratio"]["median"] == pytest.approx(0.3)
    assert found["grid"]["ranks"] == [[0, 2], [9, 1]]
    assert [row["rank"] for row in found["culprits"]] == [0, 1, None]


@pytest.mark.parametrize(("rank", "rows"), [("3", [3]), ("7777", [])])
def test_one_rank_is_one_row(rank: str, rows: list[int]) -> None:
    found = rank_columns(job_entry("llm", ranks=1024, slow=3), {"rank": rank})
    assert [row["rank"] for row in found["rows"]] == rows
    assert (found["grid"], found["picture"], found["culprits"]) == (None, None, [])


def test_shares_and_degrees_deviate_from_more_than_their_median() -> None:
    gpus = [gpu(i, i, sm_active_ratio=0.01, temperature_celsius=10.0, power_w=100.0) for i in range(9)]
    gpus[4] |= {"sm_active_ratio": 0.02, "temperature_celsius": 20.0, "power_w": 110.0}
    (row,) = [one for one in rank_columns({"gpus": gpus}, {})["rows"] if one["rank"] == 4]

    assert row["deviation"]["sm_active_ratio"] == pytest.approx(0.01 / 0.1)
    assert row["deviation"]["temperature_celsius"] == pytest.approx(10 / 283)
    assert row["deviation"]["power_w"] == pytest.approx(0.1)


def test_a_job_without_ranks_has_nothing() -> None:
    found = rank_columns({"name": "llm", "gpus": [], "nccl": None}, {"columns": "10"})
    assert (found["count"], found["metrics"], found["rows"], found["grid"]) == (0, {}, [], None)


@pytest.mark.parametrize(
    "query", [{"metric": "nothing"}, {"columns": "0"}, {"columns": "4097"}, {"columns": "x"}, {"rank": "-1"}]
)
def test_a_wrong_request_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(PerfdError):
        rank_columns(job_entry("llm"), query)


VALUES = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-6, 1e12)


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(0, 1 << 40),
            st.integers(0, 99),
            st.dictionaries(st.sampled_from(METRICS), VALUES),
        ),
        max_size=90,
    ),
    st.integers(1, 200),
)
@settings(max_examples=examples(60))
def test_whatever_ranks_report_the_answer_is_consistent(
    gpus: list[tuple[int | None, int, dict[str, float | None]]], columns: int
) -> None:
    job = {"gpus": [gpu(rank, place, **values) for rank, place, values in gpus]}
    found = rank_columns(job, {"columns": str(columns)})

    assert found["count"] == len(
        {(rank, None) if rank is not None else (None, place) for rank, place, _ in gpus}
    )
    grid = found["grid"]
    if grid is not None:
        numbers = [first + i for first, count in grid["ranks"] for i in range(count)]
        assert numbers == sorted({rank for rank, _, _ in gpus if rank is not None})
        assert len(numbers) == len(grid["values"]) == len(grid["gpus"])
        assert len(expanded(grid["nodes"])) == len(expanded(grid["stages"])) == len(numbers)
    for row in found["rows"]:
        assert all(math.isfinite(value) for value in row["values"].values())


@given(st.floats(-1e15, 1e15))
def test_values_of_a_grid_have_four_digits(value: float) -> None:
    job = {"gpus": [gpu(i, i, power_w=value) for i in range(2)]}
    (shown, _) = rank_columns(job, {})["grid"]["values"]
    assert shown == pytest.approx(value, rel=5.001e-4)
    assert shown == float(f"{shown:.4g}")


def test_an_entry_without_ranks_keeps_all_else() -> None:
    job = job_entry("llm", ranks=8) | {"nccl": {"ranks": [{"rank": 0}], "share_ratio": 0.1}, "slowdowns": []}
    short = without_ranks(job)
    assert short["nccl"] == {"share_ratio": 0.1}
    assert short["gpu_count"] == 8
    assert set(job) - set(short) == {"gpus", "slowdowns"}


def test_the_interface_answers_for_a_running_job_in_both_forms() -> None:
    def get(path: str) -> Any:
        with urllib.request.urlopen(f"{job.url}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)

    with large_job(128, 60, slow=21) as job:
        (entry,) = get(f"jobs?job={job.name}")["jobs"]
        (short,) = get(f"jobs?short=1&job={job.name}")["jobs"]
        ranks = get(f"jobs/{job.name}/ranks?metric=power_w")
        (summary,) = get(f"jobs/{job.name}?short=1")["jobs"]

        assert ranks["schema"] == "perfd.ranks/1"
        assert ranks["rows"][0]["rank"] == 21
        powers = [one["power_w"] for one in sorted(entry["gpus"], key=lambda one: one["rank"])]
        assert ranks["grid"]["values"] == pytest.approx(powers, rel=1e-3)
        assert short == without_ranks(entry) | {key: short[key] for key in ("silent_s", "log_silent_s")}
        assert short["gpu_count"] == summary["gpu_count"] == 128
        assert "gpus" not in summary
        for wrong, status in (("ranks?metric=x", 400), ("nothing", 404)):
            with pytest.raises(urllib.error.HTTPError, match=str(status)) as refused:
                get(f"jobs/{job.name}/{wrong}")
            refused.value.close()
        with pytest.raises(urllib.error.HTTPError, match="404") as unknown:
            get("jobs/nobody/ranks")
        unknown.value.close()


def test_charts_of_many_steps_are_medians_of_neighbors() -> None:
    with large_job(64, 1000) as job:
        api = f"{job.url}/api/v1/jobs/{job.name}"
        with urllib.request.urlopen(f"{api}/series?points=300", timeout=10) as answer:
            series = json.load(answer)
        with urllib.request.urlopen(f"{api}/steps", timeout=10) as answer:
            steps = json.load(answer)["steps"]
    assert len(series["step"]) == 250
    times = np.array([one["step_time_s"] for one in steps]).reshape(250, 4)
    assert series["step_time_s"] == pytest.approx(np.median(times, axis=1).tolist())
    assert series["step_time_max_s"] == pytest.approx(times.max(axis=1).tolist())


def test_a_rank_that_is_within_a_twentieth_of_the_median_is_not_unusual() -> None:
    job = job_entry("llm", ranks=1024, slow=700)
    for rank, ratio in ((5, 1.04), (6, 1.06)):
        job["gpus"][rank] = {**job["gpus"][8], **{k: job["gpus"][rank][k] for k in ("rank", "node", "gpu")}}
        job["gpus"][rank]["power_w"] *= ratio

    assert [row["rank"] for row in rank_columns(job, {})["rows"]] == [700, 6]
