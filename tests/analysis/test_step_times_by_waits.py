"""Steps one by one in a job whose log shows none: rows of seconds, and what each operation waited."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import job_data, step_table

from perfd.analysis.collectives.rank_waits_per_step import waits_by_step
from perfd.analysis.collectives.step_times_by_waits import in_steps
from perfd.analysis.data.job_data import Floats, JobData, OperationPace
from perfd.analysis.operations.communicator_waits import CommunicatorBatch, stacked
from perfd.model import ParallelLayout
from tests.support.nccl_records import CollectiveTable, stacks_of

PER_STEP, OWN_S = 5, 0.2


def stacks(waits_s: Floats, ranks: int = 4) -> list[CommunicatorBatch]:
    """Rank 0 is `waits_s` late for the first operation of each step."""
    durations = np.full((len(waits_s) * PER_STEP, ranks), 0.001)
    durations[::PER_STEP, 1:] += waits_s[:, None]
    table = CollectiveTable(
        communicator="ab",
        operation="AllReduce",
        ranks=range(ranks),
        sequence=np.arange(len(durations)),
        durations_s=durations,
        size_bytes=np.full(len(durations), 1e6),
        kernel_ratio=np.full(ranks, 0.1),
        operations_per_s=3.0,
        counted_s=30.0,
    )
    return stacked(stacks_of([table]), ParallelLayout())


def test_what_a_rank_waits_that_reports_no_operation_is_unknown() -> None:
    waits = np.full(20, 0.1)
    of_all = stacks(waits)
    of_all[0].collectives.durations_s[..., 3] = np.nan
    steps = step_table([OWN_S + 0.1] * 20)
    found = waits_by_step(of_all, 4, steps, OWN_S + 0.1, 10)
    assert np.isnan(found.summed_s[:, 3]).all()
    assert np.isfinite(found.summed_s[:, :3]).all()


def sized(found: list[CommunicatorBatch], sizes: list[float]) -> list[CommunicatorBatch]:
    """The same, of sizes that repeat."""
    for one in found:
        one.collectives.size_bytes[:] = np.resize(sizes, one.collectives.size_bytes.shape)
    return found


def logged(waits_s: Floats, lines_of: int, behind: int) -> JobData:
    """Lines of the log, each the mean of so many steps; the newest steps are `behind` them."""
    data = job(waits_s, lines_of, behind)
    table = step_table(
        data.steps.step_time_s.tolist(),
        steps_covered=data.steps.steps_covered,
        step=(1 + np.arange(len(data.steps))) * lines_of,
    )
    return replace(data, steps=table, operation_pace=None)


@pytest.mark.parametrize("behind", [0, 5])
def test_a_line_of_several_steps_hides_no_long_one_among_them(behind: int):
    waits = np.zeros(40)
    waits[[12, 17, 22, 27, 32, 37]] = 0.6
    found = in_steps(sized(stacks(waits), [1e6, 4e6, 4e6, 4e6, 4e6]), logged(waits, 5, behind), 0.32)
    assert found.each_s == pytest.approx(OWN_S + waits)
    assert found.done == pytest.approx(40)


@pytest.mark.parametrize(
    "sizes",
    [
        [1e6],  # Which of them are of a step does not show.
        [1e6] + [4e6] * 24,  # Repeats with each line.
        [1e6, 4e6],  # Too few in a step for the log's number of steps.
    ],
)
def test_of_operations_that_do_not_show_steps_the_lines_mean_is_all_that_is_known(sizes: list[float]):
    waits = np.zeros(40)
    waits[[12, 17, 22, 27, 32, 37]] = 0.6
    data = logged(waits, 5, 0)
    found = in_steps(sized(stacks(waits), sizes), data, 0.32)
    assert found.each_s == pytest.approx(np.repeat(data.steps.step_time_s, 5))
    assert found.done is None


def test_lines_of_one_step_each_are_exact_themselves():
    waits = np.linspace(0.0, 0.1, 40)
    data = logged(waits, 1, 0)
    found = in_steps(sized(stacks(waits), [1e6, 4e6, 4e6, 4e6, 4e6]), data, 0.25)
    assert found.each_s.tolist() == data.steps.step_time_s.tolist()


def job(waits_s: Floats, rows_of: int, behind: int, communicator: str = "ab") -> JobData:
    """Rows of so many steps each; the newest steps are `behind` them."""
    reported = waits_s[: len(waits_s) - behind].reshape(-1, rows_of)
    covered = np.full(len(reported), rows_of)
    pace = OperationPace(
        communicator=communicator,
        operation="AllReduce",
        per_step=float(PER_STEP),
        row_end_sequence=(len(waits_s) - behind) * PER_STEP - 1,
        doubt=None,
    )
    table = step_table(list(OWN_S + reported.mean(axis=1)), steps_covered=covered)
    return job_data(table, operation_pace=pace)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_rows_time_is_spread_over_its_steps_and_goes_on_after_it(ranks):
    waits = np.zeros(40)
    waits[[12, 17, 22, 27, 32, 37]] = 0.6
    found = in_steps(stacks(waits, ranks), job(waits, 10, behind=10), OWN_S)
    assert found.each_s == pytest.approx(OWN_S + waits)
    assert found.done == pytest.approx(40)


def test_so_many_operations_are_of_a_step_as_repeat():
    waits = np.zeros(40)
    one = in_steps(stacks(waits), job(waits, 10, behind=0), OWN_S).stacks[0]
    assert float(one.collectives.operations_per_s[0]) * OWN_S == pytest.approx(PER_STEP)


def test_a_row_that_ends_in_the_middle_of_a_step_counts_by_its_neighbors():
    waits = np.zeros(50)
    data = job(waits, 10, behind=0)
    data.steps.step_time_s[2] *= 1.1
    assert in_steps(stacks(waits), data, OWN_S).each_s == pytest.approx(np.full(50, OWN_S))


def test_without_the_operations_rows_are_all_that_is_known():
    waits = np.linspace(0.0, 0.1, 40)
    data = job(waits, 10, behind=0, communicator="cd")
    found = in_steps(stacks(waits), data, OWN_S)
    assert found.each_s == pytest.approx(np.repeat(data.steps.step_time_s, 10))
    assert found.done is None


def test_an_operation_that_a_rank_has_not_reported_says_nothing():
    waits = np.full(40, 0.1)
    batches = stacks(waits)
    batches[0].parts.last_arriver[0, -PER_STEP:] = -1
    found = in_steps(batches, job(waits, 10, behind=0), OWN_S)
    assert found.each_s == pytest.approx(np.full(40, OWN_S + 0.1))
