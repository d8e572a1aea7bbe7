"""Steps that became longer without more work for any GPU: hosts are late, and nobody is blamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import description, job_data, phase_table, step_table
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.data.job_data import GpuKey, GpuTable, JobData, StepTable
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Culprit, Finding, Kind, ranked
from perfd.analysis.steps import idle_since, longer_since, longer_steps
from perfd.model import GpuColumn

BEFORE_S, SINCE_S = 0.4, 0.6
WORK_S = 0.34
"""Of each GPU in each step, as its multiprocessors are active."""
SAMPLES_PER_STEP = 2
LONGER = [BEFORE_S] * 12 + [SINCE_S] * 8


def gpus(
    steps: StepTable,
    *,
    more_work_s: Sequence[float] = (0, 0, 0, 0),
    idle: Sequence[bool] = (True, True, True, True),
    shift_s: float = 0.0,
) -> GpuTable:
    """GPUs with as much work in each step, `more_work_s` in longer ones; those not `idle` wait in NCCL."""
    fractions = (np.arange(SAMPLES_PER_STEP) + 1) / SAMPLES_PER_STEP
    starts = steps.time_unix_s - steps.step_time_s
    longer = steps.step_time_s > BEFORE_S
    work_s = WORK_S + longer[:, None] * np.array(more_work_s, dtype=float)
    active = work_s / steps.step_time_s[:, None]
    running = np.where(np.array(idle), np.minimum(1.0, (work_s + 0.04) / steps.step_time_s[:, None]), 1.0)
    return GpuTable(
        time_unix_s=(starts[:, None] + fractions * steps.step_time_s[:, None]).ravel() + shift_s,
        gpus=[GpuKey(node="node0", gpu=str(rank), rank=rank) for rank in range(len(idle))],
        metrics={
            GpuColumn.SM_ACTIVE: np.repeat(active, SAMPLES_PER_STEP, axis=0).astype(np.float32),
            GpuColumn.BUSY: np.repeat(running, SAMPLES_PER_STEP, axis=0).astype(np.float32),
        },
    )


def job(times_s: Sequence[float] = LONGER, *, tp: int = 1, **seen: object) -> JobData:
    steps = step_table(times_s)
    layout = description(world_size=4, dp=4 // tp, tp=tp)
    return job_data(steps, description=layout, gpu=gpus(steps, **seen))  # type: ignore[arg-type]


def summary(data: JobData) -> JobSummary:
    return summarise(data, AnalysisSettings())


def kinds(data: JobData) -> set[Kind]:
    return {finding.kind for finding in summary(data).findings}


def test_all_ranks_whose_gpus_idle_in_longer_steps_have_late_hosts_and_no_rank_is_blamed():
    first = summary(job()).bottleneck

    assert first.kind is Kind.LATE_HOSTS
    assert first.culprits == ()
    assert first.gain_ratio == pytest.approx(1 - BEFORE_S / SINCE_S)
    assert first.longer_for_s == pytest.approx(8 * SINCE_S)
    assert first.since_step == 13
    took, who, unknown = first.evidence
    assert took.startswith("Steps take 600.0 ms since step 13 and took 400.0 ms before, without more work")
    assert who.startswith("GPUs of all ranks run a kernel in only 0.0% of the added time (NVML)")
    assert unknown.endswith("nothing seen shows which.")
    assert "perfd.hook" in first.advice


@pytest.mark.parametrize(
    ("gain", "lines", "found"), [(0.149, 8, False), (0.151, 8, True), (0.1, 29, False), (0.1, 30, True)]
)
def test_hosts_that_make_steps_longer_by_little_do_so_by_themselves(gain: float, lines: int, found: bool):
    """As in recordings random138 and random148: by 10 and 12% for six steps, in healthy jobs."""
    times_s = [BEFORE_S] * 12 + [BEFORE_S / (1 - gain)] * lines
    assert (Kind.LATE_HOSTS in kinds(job(times_s))) is found
    # A rank that all others wait for is no noise of all hosts.
    one = kinds(replace(job(times_s, idle=(False, True, False, False)), description=None))
    assert Kind.STRAGGLER in one


@pytest.mark.parametrize(("lines", "tentative"), [(5, True), (6, False)])
def test_late_hosts_in_few_lines_are_tentative(lines: int, tentative: bool):
    # Three lines are enough where the change is clear.
    first = summary(job([BEFORE_S] * 12 + [SINCE_S] * lines)).bottleneck
    assert (first.kind, first.tentative) == (Kind.LATE_HOSTS, tentative)


@pytest.mark.parametrize("paused_steps", [8, 30])
def test_a_pause_before_longer_steps_with_more_work_is_no_sign_of_late_hosts(paused_steps: int):
    # A new shape stops all ranks to compile, and has more work from then on.
    sampled = gpus(
        step_table([BEFORE_S] * (12 + paused_steps) + [SINCE_S] * 8), more_work_s=[SINCE_S - BEFORE_S] * 4
    )
    pause = slice(12 * SAMPLES_PER_STEP, (12 + paused_steps) * SAMPLES_PER_STEP)
    for values in sampled.metrics.values():
        values[pause] = 0.0

    data = job([BEFORE_S] * 12 + [paused_steps * BEFORE_S] + [SINCE_S] * 8)

    assert Kind.LATE_HOSTS not in kinds(replace(data, gpu=sampled))


def test_first_ranks_of_tensor_groups_that_idle_read_the_data_for_the_others():
    first = summary(job(tp=2, idle=(True, False, True, False))).bottleneck

    assert first.kind is Kind.LATE_HOSTS
    who = (
        "In that time GPUs of ranks 0, 2 run no kernel, while those of ranks 1, 3 wait in one of NCCL (NVML)."
    )
    assert who in first.evidence
    assert any("first of their tensor groups" in sentence for sentence in first.evidence)


@pytest.mark.parametrize(("rank", "named"), [(0, False), (1, True), (2, True), (3, False)])
def test_the_one_rank_that_all_others_wait_for_is_named_unless_it_may_read_their_data(rank: int, named: bool):
    idle = [one == rank for one in range(4)]
    first = summary(replace(job(idle=idle), description=None)).bottleneck

    assert first.kind is (Kind.STRAGGLER if named else Kind.LATE_HOSTS)
    assert [culprit.id for culprit in first.culprits] == ([rank] if named else [])
    assert first.gain_ratio == pytest.approx(1 - BEFORE_S / SINCE_S)
    assert any(sentence.endswith("shows which.") for sentence in first.evidence) is not named


@pytest.mark.parametrize(
    ("layout", "role", "late"),
    [
        ({"dp": 2}, None, ()),
        ({"dp": 1, "pp": 2}, None, (0,)),
        ({"dp": 1, "tp": 2}, "tensor rank 0", (0,)),
    ],
)
def test_of_two_ranks_the_late_one_is_listed_where_both_cannot_be(
    layout: dict[str, int], role: str | None, late: tuple[int, ...]
):
    parallel = {"tp": 1, "pp": 1, **layout}
    data = replace(
        job(idle=(True, False), more_work_s=(0, 0)), description=description(world_size=2, **parallel)
    )
    first = summary(data).bottleneck

    assert first.kind is Kind.LATE_HOSTS
    assert [str(culprit) for culprit in first.culprits] == ([role] if role else [])
    assert first.concerned_ranks == late


@pytest.mark.parametrize(("pp", "named"), [(1, True), (2, False)])
def test_a_rank_of_the_first_stage_may_read_the_data_for_the_others(pp: int, named: bool):
    data = replace(
        job(idle=(False, True, False, False)), description=description(world_size=4, dp=4 // pp, pp=pp)
    )
    assert bool(summary(data).bottleneck.culprits) is named


@pytest.mark.parametrize(
    ("idle", "named"), [((1, 2), [1, 2]), ((0, 2), []), ((2, 3), [])], ids=["middle", "first", "last"]
)
def test_several_ranks_that_all_others_wait_for_are_named_together(idle: tuple[int, ...], named: list[int]):
    data = replace(
        job(idle=[rank in idle for rank in range(4)]), description=description(world_size=4, dp=1, pp=4)
    )
    first = summary(data).bottleneck

    assert first.kind is (Kind.STRAGGLER if named else Kind.LATE_HOSTS)
    assert [culprit.id for culprit in first.culprits] == named


def test_several_ranks_that_each_read_their_own_data_are_not_named():
    assert not summary(job(idle=(False, True, True, False))).bottleneck.culprits


def test_first_ranks_of_several_tensor_groups_may_all_read_data_and_are_not_named():
    first = summary(job(tp=2, idle=(True, False, True, False))).bottleneck

    assert not first.culprits
    assert first.concerned_ranks == (0, 2)


@pytest.mark.parametrize("pp", [1, 2])
def test_other_ranks_of_several_tensor_groups_read_no_data_and_are_named_together(pp: int):
    data = replace(
        job(idle=(False, True, False, True)),
        description=description(world_size=4, dp=2 // pp, tp=2, pp=pp),
    )
    first = summary(data).bottleneck

    assert first.kind is Kind.STRAGGLER
    assert [culprit.id for culprit in first.culprits] == [1, 3]


@pytest.mark.parametrize(("ratio", "seen"), [(0.38, True), (0.42, False)])
def test_gpus_that_wait_keep_some_multiprocessors_active_with_kernels_of_nccl(ratio: float, seen: bool):
    more_s = ratio * (SINCE_S - BEFORE_S)
    data = job(idle=(False, True, False, True), more_work_s=(more_s, 0, more_s, 0))
    assert (Kind.LATE_HOSTS in kinds(data)) is seen


@pytest.mark.parametrize(
    ("steps", "before_s", "since_s", "seen"),
    [
        (3, 1.0, 1.6, True),
        (2, 1.0, 1.6, False),
        (3, 1.0, 1.15, False),
        (6, 1.0, 1.15, True),
        (3, 0.2, 0.32, False),
    ],
    ids=["clear", "too few", "by little", "by little for longer", "in a moment"],
)
def test_three_steps_do_where_they_are_long_and_longer_by_much(
    steps: int, before_s: float, since_s: float, seen: bool
):
    table = step_table([before_s] * 12 + [since_s] * steps)
    assert (longer_since(table, np.arange(1, 12 + steps)) is not None) is seen


def test_hosts_late_on_any_other_ranks_are_not_taken_for_readers_of_data():
    first = summary(job(tp=2, idle=(True, True, False, False))).bottleneck

    assert first.kind is Kind.LATE_HOSTS
    assert not any("tensor groups" in sentence for sentence in first.evidence)


@pytest.mark.parametrize(
    "seen",
    [
        {"more_work_s": (0, 0, 0.2, 0)},
        {"more_work_s": (0.2, 0.2, 0.2, 0.2)},
        {"more_work_s": (0, 0, -0.2, 0)},
        {"idle": (False, False, False, False)},
    ],
    ids=["one GPU computes longer", "all compute longer", "one computes less", "all wait in NCCL"],
)
def test_gpus_with_other_work_or_all_in_nccl_do_not_wait_for_hosts(seen: dict[str, tuple[float, ...]]):
    assert Kind.LATE_HOSTS not in kinds(job(**seen))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "times_s",
    [
        [BEFORE_S, SINCE_S],
        [BEFORE_S, SINCE_S] * 12,
        [BEFORE_S] * 12 + [SINCE_S] * 8 + [BEFORE_S] * 3,
        [BEFORE_S] * 4 + [SINCE_S] * 12,
        [BEFORE_S] * 20 + [SINCE_S] * 2,
        [BEFORE_S] * 12 + [BEFORE_S * 1.05] * 8,
        [BEFORE_S] * 12 + [SINCE_S] * 12 + [BEFORE_S] * 2,
        [BEFORE_S, BEFORE_S, SINCE_S] * 6 + [SINCE_S] * 8,
    ],
    ids=[
        "two steps",
        "alternating",
        "as before again",
        "too few before",
        "too few since",
        "little longer",
        "just over",
        "now and then before",
    ],
)
def test_steps_without_a_lasting_change_say_nothing_of_hosts(times_s: list[float]):
    assert Kind.LATE_HOSTS not in kinds(job(times_s))


@pytest.mark.parametrize("shift_s", [-60.0, -2.4, 2.4, 60.0])
def test_clocks_of_gpus_apart_from_that_of_the_log_say_nothing_of_hosts(shift_s: float):
    assert Kind.LATE_HOSTS not in kinds(job(shift_s=shift_s))


def test_a_gpu_that_nobody_reads_leaves_it_open():
    data = job()
    unread = {name: values.copy() for name, values in data.gpu.metrics.items()}
    for values in unread.values():
        values[:, 2] = np.nan

    assert Kind.LATE_HOSTS not in kinds(replace(data, gpu=replace(data.gpu, metrics=unread)))
    nameless = [GpuKey(node="node0", gpu=str(at)) for at in range(4)]
    assert Kind.LATE_HOSTS not in kinds(replace(data, gpu=replace(data.gpu, gpus=nameless)))


def test_a_timer_of_the_input_makes_it_data_loading():
    data = job()
    phases = phase_table(data.steps, {"batch-generator": (0.2, 0.2)})

    first = summary(replace(data, phases=phases)).bottleneck

    assert first.kind is Kind.DATA_LOADING
    assert [effect.kind for effect in first.effects] == [Kind.LATE_HOSTS]
    assert (first.longer_for_s, first.since_step) == (pytest.approx(8 * SINCE_S), 13)
    steady = job([SINCE_S] * 20)
    always = summary(replace(steady, phases=phase_table(steady.steps, {"batch-generator": (0.2, 0.2)})))
    assert always.bottleneck.kind is Kind.DATA_LOADING
    assert always.bottleneck.longer_for_s is None


def test_late_hosts_explain_idle_gpus_and_come_before_a_loss_by_design():
    late = Finding(kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.2)
    idle = Finding(kind=Kind.LAUNCH_BOUND, confidence=0.6, gain_ratio=0.3)
    design = Finding(kind=Kind.PIPELINE_IMBALANCE, confidence=0.6, gain_ratio=0.3, waiting_ratio=0.0)

    found = ranked([design, idle, late])

    assert [finding.kind for finding in found] == [Kind.LATE_HOSTS, Kind.PIPELINE_IMBALANCE]
    assert [effect.kind for effect in found[0].effects] == [Kind.LAUNCH_BOUND]


def test_a_rank_that_the_others_wait_for_is_reported_instead():
    data = job()
    slow = phase_table(
        data.steps,
        by_rank={"forward-compute": [0.1, 0.1, 0.2, 0.1], "backward-compute": [0.1, 0.1, 0.2, 0.1]},
    )

    found = summary(replace(data, phases=slow))

    assert found.bottleneck.culprits == (Culprit(kind="rank", id=2),)
    assert Kind.LATE_HOSTS not in {finding.kind for finding in found.findings}


@given(
    st.lists(st.sampled_from([0.1, 0.4, 0.6, float("nan"), float("inf"), 0.0]), max_size=40),
    st.floats(width=32),
)
def test_garbage_of_steps_and_gpus_never_raises(times_s: list[float], value: float):
    steps = replace(
        step_table([0.4] * len(times_s), time_unix_s=1000 + np.arange(len(times_s)) * 0.5),
        step_time_s=np.array(times_s, dtype=float),
    )
    table = GpuTable(
        time_unix_s=1000 + np.arange(30.0),
        gpus=[GpuKey(node="node0", gpu="0", rank=0)],
        metrics={
            name: np.full((30, 1), value, dtype=np.float32) for name in (GpuColumn.SM_ACTIVE, GpuColumn.BUSY)
        },
    )

    with np.errstate(all="ignore"):
        found = longer_steps(table, steps, np.arange(len(steps)))

    assert found is None or found.since_s > found.before_s


def unseen(
    running: Sequence[float],
    active: Sequence[float],
    *,
    last_s: float = 1011.0,
    before: Sequence[float] = (0.9,) * 12,
) -> JobData:
    """One sample a second of two GPUs, 12 as usual and then others; the newest step ended at `last_s`."""
    steps = step_table([1.0] * 12)
    steps = replace(steps, time_unix_s=steps.time_unix_s - steps.time_unix_s[-1] + last_s)
    rows = len(before) + len(active)
    columns = {
        GpuColumn.SM_ACTIVE: np.repeat([[*before, *active]], 2, axis=0).T,
        GpuColumn.BUSY: np.vstack((np.ones((len(before), 2)), np.tile(running, (len(active), 1)))),
    }
    table = GpuTable(
        time_unix_s=1000.0 + np.arange(rows),
        gpus=[GpuKey(node="node0", gpu=str(rank), rank=rank) for rank in (0, 1)],
        metrics={column: values.astype(np.float32) for column, values in columns.items()},
    )
    layout = description(world_size=2, dp=2)
    return job_data(steps, description=layout, gpu=table, now_unix_s=1000.0 + rows)


def test_gpus_of_all_ranks_that_idle_before_any_step_shows_it_have_late_hosts() -> None:
    data = unseen([0.6, 0.7], [0.6] * 3)
    found = idle_since(data, GpuColumn.BUSY)
    assert found is not None
    assert found.gain_ratio == pytest.approx(1 / 3, abs=0.01)
    assert found.idle_ratio == pytest.approx(0.3, abs=0.01)
    (late,) = (one for one in summary(data).findings if one.kind is Kind.LATE_HOSTS)
    assert "how long steps take is not known" in late.evidence[0]


@pytest.mark.parametrize(("framework", "shown"), [("", True), ("Megatron-LM", False)])
def test_gpus_show_late_hosts_of_a_job_that_prints_no_steps_and_not_before_the_first_of_one_that_does(
    framework: str, shown: bool
) -> None:
    data = unseen([0.6, 0.7], [0.6] * 3)
    assert data.description is not None
    silent = replace(data, steps=step_table([]), description=replace(data.description, framework=framework))
    assert (idle_since(silent, GpuColumn.BUSY) is not None) is shown
    assert any(one.kind is Kind.LATE_HOSTS for one in summary(silent).findings) is shown


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(unseen([1.0, 0.6], [0.6] * 3), id="one waits in NCCL for the other"),
        pytest.param(unseen([0.6, 0.6], [0.6] * 2), id="two samples"),
        pytest.param(unseen([0.1, 0.1], [0.05] * 4), id="no training"),
        pytest.param(unseen([0.6, 0.6], [0.6] * 3, last_s=1014.0), id="steps show that time"),
    ],
)
def test_gpus_that_idle_otherwise_say_nothing_before_steps_do(data: JobData) -> None:
    assert idle_since(data, GpuColumn.BUSY) is None


@pytest.mark.parametrize(
    ("usual", "low", "seen"), [(24, 9, False), (24, 7, True), (7, 7, True), (8, 8, False)]
)
def test_gpus_that_are_as_active_again_as_before_a_fault_do_not_idle(
    usual: int, low: int, seen: bool
) -> None:
    """While one rank was slow all others waited for it, with kernels that keep GPUs active."""
    before = [0.6] * low + [0.9] * (usual - low) + [0.9] * 8
    data = unseen([0.6, 0.7], [0.6] * 3, before=before, last_s=999.0 + len(before))
    assert (idle_since(data, GpuColumn.BUSY) is not None) is seen


@pytest.mark.parametrize(("covered", "seen"), [(1, False), (2, False), (4, True), (12, True)])
def test_a_row_of_many_steps_that_ends_within_that_time_does_not_show_it(covered: int, seen: bool) -> None:
    """It is a mean of steps before the change and since."""
    data = unseen([0.6, 0.6], [0.6] * 3, last_s=1014.0)
    rows = replace(data.steps, steps_covered=np.full(len(data.steps), covered))

    assert (idle_since(replace(data, steps=rows), GpuColumn.BUSY) is not None) is seen


@pytest.mark.parametrize(
    ("unread", "which"), [(0, "GPUs of all ranks run a kernel"), (1, "The GPUs that are read run a kernel")]
)
def test_of_gpus_that_no_agent_reads_nothing_is_said(unread: int, which: str) -> None:
    data = job(idle=(True,) * (4 - unread), more_work_s=(0.0,) * (4 - unread))

    (late,) = (one for one in summary(data).findings if one.kind is Kind.LATE_HOSTS)
    assert which in late.evidence[1]


def idling(
    active: Sequence[float], running: Sequence[Sequence[float]], *, row_s: float = 3.0, **fields: object
) -> JobData:
    """One sample a second of two GPUs, and one row of six steps, which ended after `row_s`."""
    steps = step_table([row_s / 6])
    steps = replace(steps, time_unix_s=np.array([1000.0 + row_s]), steps_covered=np.array([6]))
    table = GpuTable(
        time_unix_s=1000.0 + np.arange(len(active)),
        gpus=[GpuKey(node="node0", gpu=str(rank), rank=rank) for rank in (0, 1)],
        metrics={
            GpuColumn.SM_ACTIVE: np.repeat(np.array([active]), 2, axis=0).T.astype(np.float32),
            GpuColumn.BUSY: np.array(running, dtype=np.float32),
        },
    )
    now = 1000.0 + len(active)
    return job_data(steps, description=description(world_size=2, dp=2), gpu=table, now_unix_s=now, **fields)


BUSY, STALLED, STARVED = (1.0, 1.0), (1.0, 0.1), (0.8, 0.4)
HIGH, LOW = 0.9, 0.5


def test_soon_after_a_start_gpus_that_idle_together_as_never_before_have_late_hosts():
    data = idling([HIGH] * 3 + [LOW] * 3, [BUSY] * 3 + [STARVED] * 3)

    found = idle_since(data, GpuColumn.BUSY)
    assert found is not None
    assert found.gain_ratio == pytest.approx(1 - LOW / HIGH, abs=0.01)
    assert Kind.LATE_HOSTS in kinds(data)


def test_soon_after_a_rank_that_stalled_slow_loaders_of_all_are_seen():
    stalls = [LOW, HIGH, LOW, HIGH, LOW, LOW]
    data = idling(
        [HIGH] * 3 + stalls + [HIGH] * 2 + [LOW] * 3,
        [BUSY] * 3 + [STALLED] * 6 + [BUSY] * 2 + [STARVED] * 3,
        row_s=11.0,
    )

    assert idle_since(data, GpuColumn.BUSY) is not None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            idling([HIGH] * 3 + [LOW] * 3, [BUSY] * 3 + [STALLED] * 3), id="one waits for the other"
        ),
        pytest.param(idling([HIGH] * 3 + [LOW] * 2, [BUSY] * 3 + [STARVED] * 2), id="two samples"),
        pytest.param(idling([HIGH] + [LOW] * 4, [BUSY] + [STARVED] * 4), id="one sample before"),
        pytest.param(
            idling(([HIGH] * 4 + [LOW] * 3) * 2, ([BUSY] * 4 + [STARVED] * 3) * 2),
            id="generates texts and trains in turn",
        ),
        pytest.param(
            idling([HIGH] * 3 + [LOW] * 3, [STARVED] * 3 + [STARVED] * 3), id="idles as much as before"
        ),
    ],
)
def test_few_samples_of_anything_else_say_nothing_of_hosts(data: JobData) -> None:
    assert idle_since(data, GpuColumn.BUSY) is None


def test_a_row_of_that_time_with_steps_as_short_as_before_rules_it_out():
    data = idling([HIGH] * 4 + [LOW] * 6, [BUSY] * 4 + [STARVED] * 6)

    def with_row(step_s: float) -> JobData:
        steps = step_table([0.5, step_s])
        ends = np.array([1003.0, 1009.0])
        return replace(data, steps=replace(steps, time_unix_s=ends, steps_covered=np.array([6, 6])))

    assert idle_since(with_row(0.8), GpuColumn.BUSY) is not None
    assert idle_since(with_row(0.5), GpuColumn.BUSY) is None
