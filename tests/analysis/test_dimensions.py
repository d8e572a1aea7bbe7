"""Communication by parallel dimension: what it takes, what of it is exposed, and who tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analysis.jobs import description, phase_table
from analysis.test_captured import NOW_UNIX_S, STEPS, captured, finding, job, kinds
from analysis.test_nccl import table

from perfd.aggregator.live_facts import LiveFacts
from perfd.aggregator.series.job_series import derived_values
from perfd.analysis.communication.exposed_by_dimension import Dimension, costliest, known_in_all
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, from_json, summarise, to_json
from perfd.analysis.findings import Kind
from perfd.analysis.layout.process_groups import dimension_name, group_name
from perfd.metrics.catalog import METRICS
from perfd.model import GroupShares, JobDescription, ParallelLayout
from perfd.report.sources.from_summary import report_of_summary
from perfd.session.text.summary_text import in_words
from tests.support.nccl_records import CollectiveTable, NcclTime

TP2DP2 = description(world_size=4, tp=2, dp=2, micro_batch_size=1, global_batch_size=8)
PP2DP2 = description(world_size=4, pp=2, dp=2, micro_batch_size=1, global_batch_size=64)
TENSOR, DATA = [(0, 1), (2, 3)], [(0, 2), (1, 3)]


def reductions(pairs: list[tuple[int, int]], share: float, *, wait: float = 0.0) -> list[CollectiveTable]:
    """All-reduces in which ranks are so much of the time; the first one of each pair waits so much of it."""
    return [
        table(
            list(pair),
            [0, wait],
            transfer_s=share - wait,
            kernel_ratio=[share, share - wait],
            communicator=f"{pair}",
        )
        for pair in pairs
    ]


def sends(pairs: list[tuple[int, int]], sender: float, receiver: float) -> list[CollectiveTable]:
    """Sends with the shares of time that sender and receiver are in them."""
    return [
        table(
            list(pair),
            [0, 0],
            durations_s=np.tile([sender, receiver], (100, 1)),
            kernel_ratio=[sender, receiver],
            operation="SendRecv",
            communicator=f"{pair}",
        )
        for pair in pairs
    ]


def busy(*shares: float) -> list[NcclTime]:
    """The share of time of each of four ranks in kernels, or of all."""
    each = shares * 4 if len(shares) == 1 else shares
    return [
        NcclTime(rank=rank, busy_s=10 * share, span_s=10, lost_operations=0)
        for rank, share in enumerate(each)
    ]


def judged(capture: Any = None, what: JobDescription = TP2DP2, **fields: Any) -> JobSummary:
    return summarise(job(capture, description=what, **fields), AnalysisSettings())


def by_group(result: JobSummary) -> dict[str | None, Dimension]:
    return {one.group: one for one in result.communication.dimensions}


def group(ranks: tuple[int, ...], share: float, exposed: float, **fields: Any) -> GroupShares:
    reported = {"operation": "allreduce", "communication_ratio": share, "exposed_ratio": exposed, **fields}
    return GroupShares(ranks=ranks, **reported)


def shown(*groups: GroupShares, **fields: Any) -> Any:
    """A capture with the communication of these groups, none of which runs beside another."""
    return captured(
        communication_ratio=sum(one.communication_ratio for one in groups),
        exposed_communication_ratio=sum(one.exposed_ratio for one in groups),
        groups=groups,
        **fields,
    )


IN_KERNELS: dict[str, Any] = {
    "collectives": [*reductions(TENSOR, 0.25), *reductions(DATA, 0.2, wait=0.04)],
    "nccl": busy(0.45, 0.45, 0.41, 0.41),
}
HIDDEN_DATA = (group((0, 1), 0.25, 0.24), group((0, 2), 0.2, 0.01))


# By NCCL's kernels.


def test_each_dimension_has_its_own_part_of_the_time_in_kernels():
    result = judged(**IN_KERNELS)

    tensor, data = result.nccl.dimensions
    assert (tensor.group, data.group) == ("tp", "dp")
    assert (tensor.share_ratio, tensor.wait_ratio) == pytest.approx((0.25, 0))
    # Of each pair one rank waits, and the other one is there for less.
    assert (data.share_ratio, data.transfer_ratio, data.wait_ratio) == pytest.approx((0.18, 0.16, 0.02))
    assert [one.group for one in result.communication.dimensions] == ["tp", "dp"]
    assert tuple(from_json(to_json([result]))[0].communication.dimensions) == result.communication.dimensions


def test_a_rank_that_is_in_no_group_of_a_dimension_counts_with_no_time_in_it():
    result = judged(collectives=reductions([(0, 2)], 0.2), nccl=busy(0.1))

    assert by_group(result)["dp"].share_ratio == pytest.approx(0.05)


def test_sends_and_receives_that_share_a_kernel_are_counted_once():
    both_ways = sends([(0, 2), (2, 0), (1, 3), (3, 1)], 0.3, 0.3)

    result = judged(what=PP2DP2, collectives=[*both_ways, *reductions([(0, 1), (2, 3)], 0.1)], nccl=busy(0.4))

    assert by_group(result)["pp"].share_ratio == pytest.approx(0.3)
    assert by_group(result)["dp"].share_ratio == pytest.approx(0.1)


def test_collectives_that_run_beside_sends_count_each():
    result = judged(
        what=PP2DP2,
        collectives=[*sends([(0, 2), (1, 3)], 0.3, 0.3), *reductions([(0, 1), (2, 3)], 0.2)],
        nccl=busy(0.4),
    )

    assert by_group(result)["pp"].share_ratio == pytest.approx(0.3)
    assert by_group(result)["dp"].share_ratio == pytest.approx(0.2)


def test_without_enough_matched_operations_the_waiting_of_a_dimension_is_unknown():
    few = replace(
        reductions([(0, 2)], 0.2)[0],
        sequence=np.arange(5),
        durations_s=np.full((5, 2), 0.02),
        size_bytes=np.full(5, 1e9),
    )

    result = judged(collectives=[*reductions(TENSOR, 0.25), few], nccl=busy(0.45))

    assert by_group(result)["dp"].wait_ratio is None
    assert by_group(result)["tp"].wait_ratio == pytest.approx(0)


def test_waiting_of_a_dimension_is_unknown_where_much_of_its_time_could_not_be_matched():
    first, second = reductions(DATA, 0.2)
    lost = replace(second, durations_s=np.where([True, False], np.nan, second.durations_s))

    result = judged(collectives=[first, lost], nccl=busy(0.2))

    assert by_group(result)["dp"].share_ratio == pytest.approx(0.2)
    assert by_group(result)["dp"].wait_ratio is None


def test_what_two_groups_of_a_dimension_do_at_one_time_is_waited_for_once():
    first = reductions(DATA, 0.3, wait=0.1)
    second = [replace(one, communicator=f"{one.communicator} too") for one in first]

    result = judged(collectives=[*first, *second], nccl=busy(0.3))

    assert (by_group(result)["dp"].share_ratio, by_group(result)["dp"].wait_ratio) == pytest.approx(
        # Of each pair one rank is in its kernels for 0.3 of the time, and one for 0.3 of its 0.2 and 0.2.
        (0.3, 0.05)
    )


@pytest.mark.parametrize(
    ("name", "operation", "layout", "dimension"),
    [
        ("dp_cp", "AllReduce", {"dp": 2, "cp": 2}, "dp"),
        ("edp", "AllReduce", {"dp": 4, "ep": 2}, "dp"),
        ("world", "AllReduce", {"dp": 4}, "dp"),
        ("world", "AllReduce", {"tp": 4}, "tp"),
        ("world", "AllGather", {"cp": 4}, "cp"),
        # Attention reduces nothing: these are gradients.
        ("world", "AllReduce", {"cp": 4}, "dp"),
        ("world", "AlltoAll", {"dp": 4, "ep": 4}, "ep"),
        ("world", "AllReduce", {"pp": 4}, "world"),
        ("world", "AllReduce", {"tp": 2, "dp": 2}, "world"),
        (None, "AllReduce", {"tp": 2, "dp": 2}, None),
    ],
)
def test_groups_serve_a_dimension(name, operation, layout, dimension):
    parallel = ParallelLayout(**{"world_size": 4, "tp": 1, "pp": 1, "dp": 1, "cp": 1, "ep": 1} | layout)

    assert dimension_name(name, parallel, operation) == dimension


@pytest.mark.parametrize("ranks", [(0, 2), (1, 3)])
def test_gradients_of_one_replica_are_reduced_over_its_context_groups(ranks):
    parallel = ParallelLayout(world_size=8, tp=2, cp=2, dp=1, pp=2, ep=1)

    assert group_name(ranks, parallel, "AllGather") == "cp"
    assert dimension_name(group_name(ranks, parallel, "AllReduce"), parallel, "AllReduce") == "dp"


def test_timers_of_gradients_show_one_replica_whose_sequences_are_split():
    phases = phase_table(STEPS, {"all-grads-sync": (0.05, 0.05)})
    split = description(world_size=4, tp=2, dp=1, cp=2, micro_batch_size=1, global_batch_size=8)
    capture = shown(group((0, 1), 0.25, 0.2), group((0, 2), 0.2, 0.01))

    result = judged(capture, what=split, phases=phases, **IN_KERNELS)

    assert set(by_group(result)) == {"tp", "dp"}
    assert by_group(result)["dp"].exposed_source == "timers: all-grads-sync"
    assert by_group(judged(capture, what=split, **IN_KERNELS))["dp"].exposed_ratio == pytest.approx(0.009)


# What timers and the schedule tell without a capture.


def test_timers_show_what_is_exposed_of_data_parallelism_beside_other_dimensions():
    phases = phase_table(STEPS, {"all-grads-sync": (0.05, 0.06), "layernorm-grads-all-reduce": (0.01, 0.01)})

    alone = judged(phases=phases)
    beside = judged(phases=phases, **IN_KERNELS)

    (data,) = alone.communication.dimensions
    assert (data.group, data.share_ratio, data.exposed_ratio) == (
        "dp",
        pytest.approx(0.06),
        pytest.approx(0.06),
    )
    assert data.exposed_source == "timers: all-grads-sync"
    assert alone.communication.exposed_ratio is None
    seen = by_group(beside)
    assert (seen["dp"].share_ratio, seen["dp"].exposed_ratio) == pytest.approx((0.18, 0.06))
    assert (seen["tp"].exposed_ratio, seen["tp"].missing) == (None, "no capture was analyzed")


def test_no_more_is_exposed_than_there_is():
    phases = phase_table(STEPS, {"all-grads-sync": (0.3, 0.3)})

    assert by_group(judged(phases=phases, **IN_KERNELS))["dp"].exposed_ratio == pytest.approx(0.18)


@pytest.mark.parametrize(
    "what",
    [
        replace(TP2DP2, arguments={"overlap_param_gather": "True"}),
        replace(TP2DP2, framework="deepspeed"),
    ],
)
def test_timers_that_show_a_part_of_it_do_not_show_what_is_exposed(what):
    phases = phase_table(STEPS, {"all-grads-sync": (0.05, 0.05)})

    (data,) = judged(what=what, phases=phases).communication.dimensions
    (known, *_) = judged(shown(group((0, 2), 0.2, 0.1)), what=what, phases=phases).communication.dimensions

    assert (data.share_ratio, data.exposed_ratio) == (pytest.approx(0.05), None)
    assert (known.share_ratio, known.exposed_ratio, known.source) == (0.2, 0.1, "capture c1, 4 min ago")


def test_a_job_of_one_replica_has_no_data_parallelism():
    phases = phase_table(STEPS, {"all-grads-sync": (0.01, 0.01)})

    assert judged(what=description(world_size=2, tp=2), phases=phases).communication.dimensions == ()


def test_all_of_a_pipelines_transfers_are_exposed_where_the_schedule_waits_for_each():
    stages = {
        "collectives": [*sends([(0, 2), (1, 3)], 0.3, 0.3), *reductions([(0, 1), (2, 3)], 0.1)],
        "nccl": busy(0.4),
        "phases": phase_table(STEPS, {"all-grads-sync": (0.04, 0.04)}),
    }
    interleaved = replace(PP2DP2, parallel=replace(PP2DP2.parallel, vp=2))

    plain, chunks = judged(what=PP2DP2, **stages), judged(what=interleaved, **stages)
    other = judged(what=replace(PP2DP2, framework="torchtitan"), **stages)

    stage = by_group(plain)["pp"]
    assert (stage.share_ratio, stage.exposed_ratio) == pytest.approx((0.3, 0.3))
    assert "Megatron-LM waits for each" in (stage.exposed_source or "")
    # All is known, so the whole is the sum.
    assert plain.communication.exposed_ratio == pytest.approx(0.34)
    assert (plain.communication.exposed_source or "").startswith("dimensions: pp by schedule")
    for result in (chunks, other):
        assert by_group(result)["pp"].exposed_ratio is None
        assert result.communication.exposed_ratio is None


def test_timers_show_no_more_of_the_whole_than_kernels_take():
    phases = phase_table(STEPS, {"all-grads-sync": (0.5, 0.5)})
    # What the second pair of ranks does nobody knows.
    kernels = {"collectives": reductions([(0, 3), (0, 1)], 0.2), "nccl": busy(0.2)}

    alone = judged(what=description(world_size=4, dp=4), phases=phases, **kernels)

    assert alone.communication.exposed_ratio == pytest.approx(0.2)
    assert alone.communication.exposed_source == "timers: all-grads-sync"


def test_timers_of_sends_and_receives_show_a_pipeline():
    phases = phase_table(STEPS, {"forward-recv": (0.1, 0.2), "all-grads-sync": (0.05, 0.05)})

    stage, data = judged(what=PP2DP2, phases=phases).communication.dimensions

    assert (stage.group, stage.share_ratio, stage.exposed_ratio) == (
        "pp",
        pytest.approx(0.2),
        pytest.approx(0.2),
    )
    assert (data.group, data.exposed_ratio) == ("dp", pytest.approx(0.05))


# What a capture adds.


def test_a_capture_shows_which_dimension_is_hidden_and_which_is_not():
    result = judged(shown(*HIDDEN_DATA), **IN_KERNELS)

    seen = by_group(result)
    assert seen["tp"].exposed_ratio == pytest.approx(0.24)
    assert seen["tp"].exposed_source == "capture c1, 4 min ago"
    # As large a part of it as then.
    assert seen["dp"].exposed_ratio == pytest.approx(0.009)
    found = finding(result, Kind.COMMUNICATION)
    assert found.gain_ratio == pytest.approx(0.249)
    assert (
        "Exposed in a step is, by parallel dimension: tp 24.0% (capture c1, 4 min ago),"
        " dp 0.9% (capture c1, 4 min ago)." in found.evidence
    )
    assert "--tp-comm-overlap): saves at most 24.0% of the step" in found.advice
    assert "--overlap-grad-reduce" not in found.advice


def test_a_hidden_transfer_beside_a_wait_in_the_open_is_no_loss_to_communication():
    waits = [*reductions(TENSOR, 0.3, wait=0.28), *reductions(DATA, 0.3)]
    capture = shown(group((0, 1), 0.16, 0.16), group((0, 2), 0.3, 0.0))

    result = judged(capture, collectives=waits, nccl=busy(0.46))

    assert result.communication.transfer_ratio is not None
    assert result.communication.transfer_ratio > 0.3
    assert result.communication.exposed_ratio == pytest.approx(0.16)
    assert Kind.COMMUNICATION not in kinds(result)


def test_a_dimension_that_took_another_share_then_says_so():
    result = judged(shown(group((0, 1), 0.5, 0.25), group((0, 2), 0.18, 0.09)), **IN_KERNELS)

    seen = by_group(result)
    assert seen["tp"].exposed_ratio == pytest.approx(0.125)
    assert seen["tp"].exposed_source == "capture c1, 4 min ago, scaled: communication took 50.0% then"
    assert seen["dp"].exposed_source == "capture c1, 4 min ago"


def test_without_a_capture_it_is_said_what_is_missing():
    result = judged(**IN_KERNELS)

    assert {one.missing for one in result.communication.dimensions} == {"no capture was analyzed"}
    said = (
        "How much is exposed of tp (25.0% of a step), dp (18.0% of a step) is unknown: no capture was"
        " analyzed."
    )
    assert said in finding(result, Kind.COMMUNICATION).evidence
    assert "tp 25.0%, dp 18.0%; exposed unknown (no capture was analyzed)" in in_words([result])


def test_a_job_that_started_again_in_another_layout_since_the_capture_gets_nothing_from_it():
    before = shown(group((0, 1, 2, 3), 0.45, 0.45))

    result = judged(before, run_began_unix_s=NOW_UNIX_S - 5, **IN_KERNELS)

    for one in result.communication.dimensions:
        assert one.exposed_ratio is None
        assert one.missing == "capture c1 is not used: the job started again since"


def test_groups_of_a_capture_that_fit_no_dimension_of_the_layout_calibrate_none():
    result = judged(shown(group((0, 3), 0.45, 0.45, name="EMBEDDING_GROUP")), **IN_KERNELS)

    assert {one.missing for one in result.communication.dimensions} == {
        "capture c1 does not show it for these groups"
    }
    assert [one.group for one in result.communication.dimensions] == ["tp", "dp"]


def test_traces_that_do_not_show_the_ranks_of_groups_give_the_whole_only():
    result = judged(
        captured(communication_ratio=0.45, exposed_communication_ratio=0.18),
        **IN_KERNELS,
    )

    assert result.communication.exposed_ratio == pytest.approx(0.172)
    assert {one.exposed_ratio for one in result.communication.dimensions} == {None}


def test_without_timers_and_plugin_a_capture_shows_each_dimension():
    result = judged(shown(group((0, 1), 0.3, 0.2, waiting_ratio=0.5), group((0, 3), 0.1, 0.1, name="EMBD")))

    tensor, own = result.communication.dimensions
    assert (tensor.group, tensor.share_ratio, tensor.exposed_ratio, tensor.wait_ratio) == (
        "tp",
        0.3,
        0.2,
        pytest.approx(0.15),
    )
    assert (own.group, own.wait_ratio, own.source) == ("EMBD", None, "capture c1, 4 min ago")


def test_of_a_job_of_unknown_layout_groups_have_the_names_of_the_traces():
    nothing = description(world_size=None, tp=None, pp=None, dp=None, cp=None, ep=None, vp=None)

    result = judged(shown(group((0, 2), 0.2, 0.1, name="DATA_PARALLEL_GROUP")), what=nothing)

    assert [one.group for one in result.communication.dimensions] == ["DATA_PARALLEL_GROUP"]


@pytest.mark.parametrize(
    ("operation", "layout", "dimension"),
    [
        ("sendrecv", {"pp": 4}, "pp"),
        ("sendrecv", {"cp": 2, "pp": 2}, "world"),
        ("barrier", {"dp": 4}, "world"),
        ("all_to_allv", {"dp": 4, "ep": 4}, "ep"),
        ("allreduce", {"dp": 4, "ep": 4}, "dp"),
    ],
)
def test_an_operation_over_all_ranks_is_of_the_dimension_that_can_do_it(operation, layout, dimension):
    what = description(world_size=4, **layout)

    result = judged(shown(group((0, 1, 2, 3), 0.2, 0.1, operation=operation)), what=what)

    assert [one.group for one in result.communication.dimensions] == [dimension]


def test_dimensions_that_are_exposed_at_one_time_are_no_more_than_the_whole():
    both = {"collectives": [*reductions(TENSOR, 0.3), *reductions(DATA, 0.3)], "nccl": busy(0.4)}

    result = judged(shown(group((0, 1), 0.3, 0.3), group((0, 2), 0.3, 0.3)), **both)

    assert [one.exposed_ratio for one in result.communication.dimensions] == pytest.approx([0.3, 0.3])
    assert result.communication.exposed_ratio == pytest.approx(0.4)


def test_dimensions_that_are_not_the_whole_do_not_show_all_that_is_exposed():
    seen = (
        Dimension(group="tp", share_ratio=0.2, source="a", exposed_ratio=0.1),
        Dimension(group="dp", share_ratio=0.1, source="a", exposed_ratio=0.1),
    )

    assert known_in_all(seen, 0.3) == known_in_all(seen, 0.309) == seen
    assert known_in_all(seen, 0.311) == known_in_all(seen, 0.5) == ()


@pytest.mark.parametrize(("part", "counts"), [(0.09, False), (0.11, True)])
def test_a_communicator_of_a_few_numbers_does_not_stand_for_its_dimension(part: float, counts: bool) -> None:
    few = [replace(one, communicator=f"few {one.communicator}") for one in reductions(TENSOR, part * 0.3)]

    (kind,) = judged(collectives=[*reductions(TENSOR, 0.3), *few]).nccl.kinds

    assert (kind.group, kind.communicators) == ("tp", 4)
    assert kind.kernel_ratio == pytest.approx(0.3 * (1 + part) / 2 if counts else 0.3)


def test_of_what_little_a_dimension_takes_nothing_is_said():
    little = {"collectives": [*reductions(TENSOR, 0.3), *reductions(DATA, 0.005)], "nccl": busy(0.305)}

    evidence = finding(judged(**little), Kind.COMMUNICATION).evidence

    assert "How much is exposed of tp (30.0% of a step) is unknown: no capture was analyzed." in evidence


def test_why_a_capture_is_not_used_is_said_once():
    before = shown(group((0, 1, 2, 3), 0.45, 0.45))

    result = judged(before, run_began_unix_s=NOW_UNIX_S - 5, **IN_KERNELS)

    said = [one for one in finding(result, Kind.COMMUNICATION).evidence if "started again since" in one]
    assert len(said) == 1


# What to do.


def test_waiting_that_may_be_a_pipelines_stall_is_not_what_costs_most():
    stages = Dimension(group="pp", share_ratio=0.3, source="a", exposed_ratio=0.3)
    data = Dimension(group="dp", share_ratio=0.1, source="a", exposed_ratio=0.1)

    assert costliest([stages, data]) == data
    assert costliest([replace(stages, transfer_ratio=0.2), data]) == replace(stages, transfer_ratio=0.2)
    assert costliest([stages]) is None


@pytest.mark.parametrize(
    ("layout", "groups", "operation", "advice"),
    [
        ({"dp": 2, "tp": 2}, DATA, "AllReduce", "--overlap-grad-reduce"),
        ({"dp": 2, "tp": 2}, TENSOR, "AllReduce", "--tp-comm-overlap"),
        ({"dp": 2, "cp": 2}, TENSOR, "AllGather", "--cp-comm-type p2p"),
        ({"dp": 4, "ep": 2}, TENSOR, "AlltoAll", "--overlap-moe-expert-parallel-comm"),
        ({"dp": 2, "pp": 2, "vp": 2}, DATA, "SendRecv", "--num-layers-per-virtual-pipeline-stage"),
        ({"dp": 2, "tp": 2}, [(0, 1, 2, 3)], "AllReduce", "--no-barrier-with-level-1-timing"),
    ],
)
def test_the_advice_is_for_the_dimension_that_costs_most(layout, groups, operation, advice):
    what = description(world_size=4, **layout)
    names = {"SendRecv": "sendrecv", "AlltoAll": "all_to_all"}
    operations = [
        table(list(ranks), [0] * len(ranks), transfer_s=0.04, operation=operation, communicator=f"{ranks}")
        for ranks in groups
    ]
    capture = shown(group(groups[0], 0.4, 0.4, operation=names.get(operation, "allreduce")))

    found = finding(judged(capture, what=what, collectives=operations, nccl=busy(0.4)), Kind.COMMUNICATION)

    assert advice in found.advice
    flags = {"--overlap-grad-reduce", "--tp-comm-overlap", "--cp-comm-type", "--overlap-moe", "--no-barrier"}
    assert sum(flag in found.advice for flag in flags) <= 1


def test_what_little_is_known_of_one_dimension_does_not_hide_another_that_may_cost_more():
    phases = phase_table(STEPS, {"all-grads-sync": (0.02, 0.02)})

    found = finding(judged(phases=phases, **IN_KERNELS), Kind.COMMUNICATION)

    assert "saves at most 2.0%" not in found.advice
    assert "--tp-comm-overlap" in found.advice


# Where people see it.


def test_each_dimension_is_a_series_with_its_source():
    data = job(shown(*HIDDEN_DATA), description=TP2DP2, **IN_KERNELS)
    facts = LiveFacts(
        labels={"perfd_job": "job"},
        attempt=1,
        nodes=1,
        ranks=4,
        log_silent_s=None,
        log_lines=None,
        unrecognized_lines=None,
        step_time_change=None,
    )

    values = derived_values(data, summarise(data, AnalysisSettings()), facts)

    reported = {
        (name, labels["dimension"], labels["source"]): value
        for name, labels, value in values
        if name.startswith("perfd_communication_dimension_")
    }
    exposed = {key[1:]: value for key, value in reported.items() if "exposed" in key[0]}
    assert exposed == {("tp", "capture"): pytest.approx(0.24), ("dp", "capture"): pytest.approx(0.009)}
    assert reported["perfd_communication_dimension_share_ratio", "dp", "nccl plugin"] == pytest.approx(0.18)
    assert reported["perfd_communication_dimension_wait_ratio", "dp", "nccl plugin"] == pytest.approx(0.02)
    assert {name for name, *_ in reported} <= METRICS.keys()


def test_the_report_has_a_table_of_dimensions():
    report = report_of_summary(judged(shown(*HIDDEN_DATA), **IN_KERNELS), "summary.json")

    (found,) = (one for one in report.tables if one.title == "Communication by parallel dimension")
    assert [row[0] for row in found.rows] == ["tp", "dp"]
    assert found.rows[0][-1] == "24.0%"
