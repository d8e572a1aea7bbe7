"""Collectives of all ranks side by side: transfer, waiting, and who is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfd.analysis.findings import Kind
from perfd.report.sources.trace_notes import notes_of
from perfd.trace.breakdown.collective_matching import CollectiveMatching
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.readers.trace_files import read_traces
from tests.support.traces import COMPUTE, COPY, NCCL, NsysExport, Op, kineto, write_json

_PIPELINE = "PIPELINE_MODEL_PARALLEL_GROUP"
_GROUP = {"Process Group Name": "3", "Process Group Description": "DP", "Process Group Ranks": "[0, 1]"}


def _reduce(start, end, sequence=None, elements=4096, name="allreduce", ranks="[0, 1]"):
    args = _GROUP | {
        "Collective name": name,
        "In msg nelems": elements,
        "dtype": "Float",
        "Process Group Ranks": ranks,
    }
    return Op(NCCL, start, end, args=args if sequence is None else args | {"Seq": sequence})


def _analysis(tmp_path, *ranks, **options):
    paths = [
        write_json(tmp_path / f"{rank}.json", kineto(operations, rank=rank, world_size=len(ranks), **options))
        for rank, operations in enumerate(ranks)
    ]
    return analyse(read_traces(paths))


def _row(analysis, rank, operation="allreduce"):
    return next(row for row in analysis.collectives.by_rank[rank] if row.operation == operation)


def test_the_shortest_is_the_transfer_and_the_rest_waiting(tmp_path):
    found = _analysis(tmp_path, [_reduce(0, 100), _reduce(200, 210)], [_reduce(70, 100), _reduce(180, 210)])

    first, second = _row(found, 0), _row(found, 1)
    assert first.matching is CollectiveMatching.ORDER
    assert first.transfer_s == second.transfer_s == pytest.approx(40e-6)
    assert first.wait_s == pytest.approx(70e-6)
    assert second.wait_s == pytest.approx(20e-6)
    assert first.total_s == pytest.approx(first.transfer_s + first.wait_s)


def test_each_group_shows_how_much_nothing_hid(tmp_path):
    tensor = _reduce(0, 30, ranks="[0, 1]")
    args = dict(tensor.args) | {"Process Group Description": "TP", "Process Group Name": "4"}
    operations = [
        replace(tensor, args=args),
        Op(COMPUTE, 20, 60, stream=9),
        _reduce(40, 70),
        Op(COPY, 65, 90, stream=11),
        _reduce(100, 120),
    ]
    found = _analysis(tmp_path, operations, operations)

    exposed = {row.group: (row.total_s, row.exposed_s) for row in found.collectives.by_rank[0]}
    assert exposed == {
        "TP": (pytest.approx(30e-6), pytest.approx(20e-6)),
        "DP": (pytest.approx(50e-6), pytest.approx(25e-6)),
    }
    whole = found.ranks[0].whole
    assert sum(alone for _, alone in exposed.values()) == pytest.approx(whole.exposed_communication_s)


def test_numbers_match_what_order_would_not(tmp_path):
    # Rank 1 was recorded from its second operation on.
    found = _analysis(
        tmp_path,
        [_reduce(0, 100, 7), _reduce(200, 210, 8), _reduce(300, 350, 9)],
        [_reduce(180, 210, 8), _reduce(320, 350, 9)],
    )

    row = _row(found, 0)
    assert row.matching is CollectiveMatching.SEQUENCE
    assert (row.count, row.matched_count) == (3, 2)
    assert row.transfer_s == pytest.approx(40e-6)
    assert row.wait_s == pytest.approx(20e-6)


def test_without_numbers_unequal_counts_are_not_matched(tmp_path):
    found = _analysis(tmp_path, [_reduce(0, 100), _reduce(200, 210)], [_reduce(180, 210)])

    assert _row(found, 0).transfer_s is None
    assert _row(found, 0).wait_s is None
    assert any("1 to 2" in sentence for sentence in found.collectives.unmatched)


def test_a_rank_that_was_not_traced_leaves_its_groups_unmatched(tmp_path):
    ranks = "[0, 1, 2]"
    found = _analysis(tmp_path, [_reduce(0, 100, ranks=ranks)], [_reduce(50, 100, ranks=ranks)])

    assert _row(found, 0).transfer_s is None
    assert any("no trace of rank 2" in sentence for sentence in found.collectives.unmatched)
    assert any("no trace of rank 2" in note for note in notes_of(found))


def test_of_one_rank_it_is_said_once_that_nothing_can_be_matched(tmp_path):
    found = _analysis(tmp_path, [_reduce(0, 100), _reduce(200, 300, name="allgather")])

    assert len(found.collectives.unmatched) == 2
    assert notes_of(found)[-1].startswith("Transfer and waiting are not separated")
    assert not any("Not matched" in note for note in notes_of(found))


def _unnamed(tmp_path, *ranks):
    export = NsysExport(tmp_path / "n.sqlite")
    for rank, times in enumerate(ranks):
        for start, end in times:
            export.kernel("ncclDevKernel_AllReduce_Sum_f32", start, end, process=rank + 1, device=rank)
    export.epoch(1_790_000_000_000_000_000)
    return analyse(read_traces([export.close()]))


def test_operations_of_no_named_group_match_when_they_end_together(tmp_path):
    found = _unnamed(tmp_path, [(0, 90_000)], [(50_000, 90_100)], [(80_000, 90_200)])

    assert _row(found, 0).transfer_s == pytest.approx(10.2e-6)


def test_two_groups_without_names_are_not_taken_for_one(tmp_path):
    first, second = [(0, 90_000)], [(200_000, 290_000)]
    found = _unnamed(tmp_path, first, first, second, second)

    assert _row(found, 0).transfer_s is None
    assert any("which ranks they join" in sentence for sentence in found.collectives.unmatched)


def test_a_broadcast_is_not_split(tmp_path):
    found = _analysis(tmp_path, [_reduce(0, 100, name="broadcast")], [_reduce(70, 100, name="broadcast")])

    assert _row(found, 0, "broadcast").transfer_s is None


def test_barriers_and_reductions_of_one_element_are_distinguished(tmp_path):
    operations = [
        _reduce(0, 10, elements=0, name="barrier"),
        _reduce(20, 30, elements=1),
        _reduce(40, 50, elements=4096),
    ]
    found = _analysis(tmp_path, operations, operations)

    rows = [(row.operation, row.barrier, row.count) for row in found.collectives.by_rank[0]]
    assert sorted(rows) == [("allreduce", False, 1), ("allreduce", True, 1), ("barrier", True, 1)]


def _message(name, start, peer):
    key = "Dst Rank" if name == "send" else "Src Rank"
    return {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 100, "tid": 100,
        "ts": start, "dur": 1,
        "args": {"Collective name": name, "Process Group Description": _PIPELINE, key: peer},
    }  # fmt: skip


def test_a_receive_that_waits_for_its_sender_is_waiting(tmp_path):
    groups = [{"pg_name": "9", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 1]}]
    sender = kineto(
        [Op(COMPUTE, 0, 180, launched=-5), Op("ncclDevKernel_SendRecv(x)", 180, 200, launched=179)],
        rank=0, groups=groups,
    )  # fmt: skip
    receiver = kineto(
        [Op("ncclDevKernel_SendRecv(x)", 20, 200, launched=15), Op(COMPUTE, 200, 260, launched=16)],
        rank=1, groups=groups,
    )  # fmt: skip
    sender["traceEvents"].append(_message("send", 170, 1))
    receiver["traceEvents"].append(_message("recv", 5, 0))
    paths = [write_json(tmp_path / "0.json", sender), write_json(tmp_path / "1.json", receiver)]

    analysis = analyse(read_traces(paths))

    row = _row(analysis, 1, "sendrecv")
    assert (row.group, row.group_ranks) == (_PIPELINE, (0, 1))
    assert row.matching is CollectiveMatching.MESSAGES
    assert row.transfer_s == pytest.approx(20e-6)
    assert row.wait_s == pytest.approx(160e-6)
    first, second = analysis.stages
    assert (first.stage, second.stage) == (0, 1)
    assert second.message_wait_s == pytest.approx(160e-6)
    assert Kind.PIPELINE_IMBALANCE in {found.kind for found in diagnose(analysis).findings}


def test_a_kernel_of_several_messages_is_done_with_the_last(tmp_path):
    name, middle = "ncclDevKernel_SendRecv(x)", [_message("recv", 1, 0), _message("send", 2, 2)]
    traces = [
        (kineto([Op(name, 90, 100, launched=80)], rank=0), [_message("send", 70, 1)]),
        (kineto([Op(name, 20, 200, launched=15)], rank=1), middle),
        (kineto([Op(name, 160, 200, launched=150)], rank=2), [_message("recv", 140, 1)]),
    ]
    paths = []
    for rank, (trace, messages) in enumerate(traces):
        trace["traceEvents"] += messages
        paths.append(write_json(tmp_path / f"{rank}.json", trace))

    row = _row(analyse(read_traces(paths)), 1, "sendrecv")

    assert row.transfer_s == pytest.approx(40e-6)
    assert row.wait_s == pytest.approx(140e-6)


def test_two_ranks_that_take_turns_being_last_are_no_straggler(tmp_path):
    def rank(first, second):
        return [
            Op(COMPUTE, 0, first, launched=-5),
            _reduce(first, 170),
            Op(COMPUTE, 200, second, launched=-4),
            _reduce(second, 370),
        ]

    analysis = _analysis(tmp_path, rank(100, 350), rank(150, 300))

    assert Kind.STRAGGLER not in {found.kind for found in diagnose(analysis).findings}


def test_a_rank_that_the_others_wait_for_is_the_straggler(tmp_path):
    def step(slow):
        return [
            Op(COMPUTE, 0, 150 if slow else 100, launched=-5),
            _reduce(150 if slow else 100, 170, ranks="[0, 1, 2]"),
        ]

    analysis = _analysis(tmp_path, step(slow=False), step(slow=False), step(slow=True))

    (found,) = [one for one in diagnose(analysis).findings if one.kind is Kind.STRAGGLER]
    assert [culprit.id for culprit in found.culprits] == [2]
    assert found.confidence == 0.9
    assert found.gain_ratio == pytest.approx(50 / 170)


@pytest.mark.parametrize(("reduced", "expected"), [(170, Kind.STRAGGLER), (500, None)])
def test_a_straggler_is_the_cause_unless_communication_takes_long_without_it(tmp_path, reduced, expected):
    def step(slow):
        computed = 150 if slow else 100
        return [Op(COMPUTE, 0, computed, launched=-5), _reduce(computed, reduced, ranks="[0, 1, 2]")]

    diagnosis = diagnose(_analysis(tmp_path, step(slow=False), step(slow=False), step(slow=True)))

    assert Kind.STRAGGLER in {found.kind for found in diagnosis.findings}
    assert (diagnosis.cause and diagnosis.cause.kind) is expected
    assert diagnosis.first is diagnosis.findings[0]
    explained = [effect.kind for effect in diagnosis.first.effects]
    assert explained == ([] if expected is None else [Kind.COMMUNICATION])


def test_equal_ranks_have_no_straggler(tmp_path):
    step = [Op(COMPUTE, 0, 100, launched=-5), _reduce(100, 120)]

    analysis = _analysis(tmp_path, step, step)

    assert Kind.STRAGGLER not in {found.kind for found in diagnose(analysis).findings}


def test_in_the_real_pipeline_communication_is_nearly_all_waiting(shared):
    analysis = analyse(read_traces(shared.kineto))

    for row in (row for rows in analysis.collectives.by_rank.values() for row in rows):
        assert row.matched_count == row.count
        assert row.transfer_s + row.wait_s == pytest.approx(row.total_s)
    transfer = sum(one[0] for one in analysis.collectives.split.values())
    wait = sum(one[1] for one in analysis.collectives.split.values())
    assert transfer / (transfer + wait) < 0.02
    assert [stall.stage for stall in analysis.stages] == [0, 1, 2, 3]


def test_sends_in_groups_that_nobody_described_show_no_ranks(tmp_path):
    # What PyTorch writes of a group that was made without a description.
    groups = [
        {"pg_name": name, "pg_desc": "undefined", "ranks": ranks}
        for name, ranks in (("1", [0, 1]), ("2", [0, 2]))
    ]
    sender = kineto([Op("ncclDevKernel_SendRecv(x)", 180, 200, launched=179)], rank=0, groups=groups)
    message = _message("send", 170, 1)
    message["args"]["Process Group Description"] = "undefined"
    sender["traceEvents"].append(message)

    analysis = analyse(read_traces([write_json(tmp_path / "0.json", sender)]))

    assert _row(analysis, 0, "sendrecv").group_ranks == ()
