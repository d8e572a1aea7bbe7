"""Every shape that PyTorch's traces had."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.errors import TraceError
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.readers import kineto_reader as reader
from tests.support.examples import examples
from tests.support.traces import COMPUTE, COPY, MATMUL, NCCL, Call, Op, kineto, write_json

_OPERATIONS = [
    Op(COMPUTE, 10.5, 20.25, launched=9),
    Op(NCCL, 15, 30, stream=20, launched=10),
    Op(COPY, 40, 45, launched=11),
]


def _read(tmp_path, trace, **options):
    return reader.read(write_json(tmp_path / "trace.json", trace, **options))


def test_a_plain_trace_gives_operations_calls_steps_and_who_it_is(tmp_path):
    (trace,) = _read(tmp_path, kineto(_OPERATIONS, steps={3: (0, 50)}, rank=2, world_size=8, device=1))

    assert trace.rank == 2
    assert trace.world_size == 8
    assert trace.gpu == "NVIDIA H200"
    assert trace.operations.start_ns.tolist() == [10_500, 15_000, 40_000]
    assert trace.operations.end_ns.tolist() == [20_250, 30_000, 45_000]
    assert trace.operations.kind.tolist() == [
        OperationKind.COMPUTE,
        OperationKind.COMMUNICATION,
        OperationKind.MEMORY,
    ]
    assert [step.number for step in trace.steps] == [3]
    assert len(trace.calls) == 3
    assert trace.epoch_ns == 1_790_857_026_000_000_000


def test_a_compressed_trace_reads_the_same(tmp_path):
    trace = kineto(_OPERATIONS)
    plain = _read(tmp_path, trace)[0]
    packed = reader.read(write_json(tmp_path / "trace.json.gz", trace, packed=True))[0]

    assert packed.operations.start_ns.tolist() == plain.operations.start_ns.tolist()


def test_copies_of_steps_on_the_gpus_rows_are_no_operations(tmp_path):
    (trace,) = _read(tmp_path, kineto([Op(COMPUTE, 1, 2)], steps={1: (0, 10)}))

    assert len(trace.operations) == 1


def test_capitalised_categories_of_2021_are_understood(tmp_path):
    events = [
        {"ph": "X", "cat": "Kernel", "name": COMPUTE, "pid": 0, "tid": "stream 7", "ts": 5, "dur": 2,
         "args": {"device": 0, "stream": 7, "correlation": 1, "external id": 3}},
        {"ph": "X", "cat": "Memcpy", "name": COPY, "pid": 0, "tid": "stream 7", "ts": 9, "dur": 1,
         "args": {"device": 0, "stream": 7, "correlation": 2}},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 4, "tid": "4", "ts": 1, "dur": 2,
         "args": {"cbid": 211, "correlation": 1}},
        {"ph": "X", "cat": "Operator", "name": "ProfilerStep#7", "pid": 4, "tid": "4", "ts": 0, "dur": 20},
        {"ph": "s", "cat": "async_cpu_to_gpu", "name": "launch", "id": 1, "pid": 4, "tid": "4", "ts": 1},
    ]  # fmt: skip
    (trace,) = _read(tmp_path, {"schemaVersion": 1, "traceEvents": events})

    assert trace.operations.kind.tolist() == [OperationKind.COMPUTE, OperationKind.MEMORY]
    assert len(trace.calls) == 1
    assert [step.number for step in trace.steps] == [7]


def test_absolute_whole_microseconds_stay_exact(tmp_path):
    start = 1_700_000_000_123_457
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": COMPUTE,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": 3,
        "args": {},
    }

    (trace,) = _read(tmp_path, {"traceEvents": [event]})

    assert trace.operations.start_ns.tolist() == [start * 1000]
    assert trace.operations.end_ns.tolist() == [(start + 3) * 1000]
    assert trace.epoch_ns == 0


def test_relative_times_keep_their_nanoseconds(tmp_path):
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": COMPUTE,
        "pid": 0,
        "tid": 7,
        "ts": 4368599650414.334,
        "dur": 0.128,
    }

    (trace,) = _read(tmp_path, {"baseTimeNanoseconds": 1, "traceEvents": [event]})

    assert trace.operations.start_ns.tolist() == [4_368_599_650_414_334]
    assert trace.operations.end_ns.tolist() == [4_368_599_650_414_462]


def test_amds_kernels_without_context_and_hips_calls_are_understood(tmp_path):
    events = [
        {"ph": "X", "cat": "kernel", "name": "Cijk_Ailk_Bljk_MT64", "pid": 2, "tid": 0, "ts": 9, "dur": 4,
         "args": {"device": 2, "stream": 0, "correlation": 118, "kind": "Dispatch Kernel"}},
        {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 5, "tid": 5, "ts": 1, "dur": 2,
         "args": {"correlation": 118, "stream": "0x0", "cid": 107}},
        {"ph": "X", "cat": "cuda_runtime", "name": "hipMemcpyWithStream", "pid": 5, "ts": 4, "dur": 2,
         "args": {"correlation": 119}},
    ]  # fmt: skip
    (trace,) = _read(tmp_path, {"traceEvents": events})

    assert trace.device == 2
    assert trace.classes == ["matmul"]
    assert trace.calls.correlation.tolist() == [118, 119]


def test_numbers_written_as_text_are_numbers(tmp_path):
    args = {"device": "3", "stream": "7", "correlation": "12"}
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": COMPUTE,
        "pid": "3",
        "tid": "7",
        "ts": "5.5",
        "dur": "2",
        "args": args,
    }

    (trace,) = _read(tmp_path, {"traceEvents": [event]})

    assert trace.device == 3
    assert trace.operations.correlation.tolist() == [12]
    assert trace.operations.start_ns.tolist() == [5_500]


def test_the_run_may_be_described_behind_the_events(tmp_path):
    trace = kineto([Op(COMPUTE, 1, 2)], rank=None)
    trace["distributedInfo"] = {"backend": "nccl", "rank": 5, "world_size": 6, "nccl_version": "unknown"}

    assert _read(tmp_path, trace)[0].rank == 5


def test_a_gpu_without_a_name_is_an_unknown_one(tmp_path):
    trace = kineto([Op(COMPUTE, 1, 2)])
    trace["deviceProperties"][0]["name"] = ""

    assert _read(tmp_path, trace)[0].gpu is None


def test_lists_behind_the_events_such_as_kinetos_own_log_are_none_of_them(tmp_path):
    trace = kineto([Op(COMPUTE, 10, 20)], rank=3)
    behind = {"INFO": ["2 x [kernel]", "}, {", "]}"], "ERROR": [], "devices": [{"id": 0, "ids": [1]}]}

    (read,) = _read(tmp_path, trace | behind | {"traceName": "t.json"})

    assert read.rank == 3
    assert len(read.operations) == 1


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    events = kineto([Op(COMPUTE, 1, 2)])["traceEvents"]

    assert len(_read(tmp_path, events)[0].operations) == 1


def test_times_whose_sum_no_number_holds_are_left_out_and_reported(tmp_path):
    operations = [Op(COMPUTE, 1, 2), Op(COMPUTE, -8e15, 0), Op(COMPUTE, 1, 1e15), Op(COMPUTE, 3.9e15, 3.9e15)]
    (trace,) = _read(tmp_path, kineto(operations))

    assert trace.operations.start_ns.tolist() == [1_000, int(3.9e18)]
    assert trace.notes == ["2 GPU operations have no valid time, and are left out."]


def test_negative_durations_are_left_out_and_reported(tmp_path):
    (trace,) = _read(tmp_path, kineto([Op(COMPUTE, 1, 2), Op(COMPUTE, 9, 5)]))

    assert len(trace.operations) == 1
    assert any("no valid time" in note for note in trace.notes)


def test_a_process_with_two_gpus_is_two_traces(tmp_path):
    trace = kineto([Op(COMPUTE, 1, 2)])
    trace["traceEvents"] += kineto([Op(COMPUTE, 3, 4)], device=1)["traceEvents"]

    traces = _read(tmp_path, trace)

    assert [one.device for one in traces] == [0, 1]
    assert [one.rank for one in traces] == [None, None]


def test_collectives_say_their_group_size_and_number(tmp_path):
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "dtype": "BFloat16",
        "Process Group Name": "5",
        "Process Group Description": "DATA_PARALLEL_GROUP",
        "Process Group Ranks": "[0, 1, ...]",
        "Seq": 17,
    }
    groups = [{"pg_name": "5", "pg_desc": "DATA_PARALLEL_GROUP", "ranks": [0, 1, 2, 3]}]

    (trace,) = _read(tmp_path, kineto([Op(COMPUTE, 0, 1), Op(NCCL, 5, 9, args=args)], groups=groups))

    (one,) = trace.collectives
    assert (one.operation, one.name, one.group, one.sequence) == (1, "allreduce", "DATA_PARALLEL_GROUP", 17)
    assert one.size_bytes == 2048
    assert one.group_ranks == (0, 1, 2, 3)


def test_a_kernel_of_sends_and_receives_carries_what_the_host_noted_before_it(tmp_path):
    trace = kineto(
        [
            Op("ncclDevKernel_SendRecv(x)", 20, 30, launched=12),
            Op("ncclDevKernel_SendRecv(x)", 40, 50, launched=33),
        ]
    )
    trace["traceEvents"] += [
        _noted("send", 5, {"Dst Rank": 2}),
        _noted("recv", 7, {"Src Rank": 0}),
        _noted("recv", 27, {"Src Rank": 2}),
        _noted("wait", 8, {}),
    ]

    (read,) = _read(tmp_path, trace)

    first, second = read.collectives
    assert [(one.peer, one.sent) for one in first.messages] == [(2, True), (0, False)]
    assert [(one.peer, one.sent) for one in second.messages] == [(2, False)]
    assert first.group == "PIPE"


def _noted(name, start, args):
    return {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 100, "tid": 100,
        "ts": start, "dur": 1,
        "args": {"Collective name": name, "Process Group Description": "PIPE", **args},
    }  # fmt: skip


def test_strings_that_look_like_the_end_of_an_event_do_not_cut_it(tmp_path):
    operations = [Op(f"kernel_{at}_replica_groups={{{{0,1}},{{2,3}}}}", at, at + 1) for at in range(40)]
    path = tmp_path / "trace.json"
    # Compact, so that `},{` in the name reads like the boundary of two events.
    path.write_text(json.dumps(kineto(operations), separators=(",", ":")), encoding="utf-8")

    (trace,) = reader.read(path, piece_bytes=200)

    assert len(trace.operations) == 40


@settings(max_examples=examples(30), deadline=None)
@given(piece_bytes=st.integers(50, 4000))
def test_the_size_of_pieces_does_not_matter(tmp_path_factory, piece_bytes):
    path = tmp_path_factory.mktemp("pieces") / "trace.json"
    operations = [
        Op(name, at, at + 2, launched=at - 1) for at in range(30) for name in (COMPUTE, MATMUL, NCCL)
    ]
    trace = kineto(
        operations,
        calls=[Call("cudaDeviceSynchronize", 1, 2)],
        steps={1: (0, 40)},
        groups=[{"pg_name": str(number), "ranks": [0, number]} for number in range(3)],
    )
    # On demand, torch describes the run behind the events.
    behind = {
        "distributedInfo": trace.pop("distributedInfo"),
        "INFO": ["[a]", "}, {"],
        "devices": [{"id": 0}],
    }
    write_json(path, trace | behind)

    (trace,) = reader.read(path, piece_bytes=piece_bytes)

    assert len(trace.operations) == 90
    assert len(trace.calls) == 91
    assert trace.rank == 0


def test_one_odd_event_does_not_lose_the_others(tmp_path):
    trace = kineto([Op(COMPUTE, 1, 2)])
    trace["traceEvents"] += [
        {"ph": "X", "cat": "kernel", "name": COMPUTE, "ts": "soon", "dur": 1},
        17,
        {
            "ph": "X",
            "cat": "kernel",
            "name": COMPUTE,
            "pid": 0,
            "tid": 7,
            "ts": 3,
            "dur": 1,
            "args": {"stream": []},
        },
    ]

    (read,) = _read(tmp_path, trace)

    assert len(read.operations) == 2
    assert any("left out" in note for note in read.notes)


def test_a_trace_of_cpus_alone_is_distinguished_from_an_empty_one(tmp_path):
    operators = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 1} for at in range(1200)]
    path = write_json(tmp_path / "rank0.pt.trace.json", {"traceEvents": operators})

    with pytest.raises(TraceError, match="has no GPU operation, only 1,200 of the host: record"):
        reader.read(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("hello", "not a trace; perfd reads"),
        ("groups:\n- name: mine\n", "not a trace; perfd reads"),
        ("null", "not a trace; perfd reads"),
        ("{}", 'it has no list "traceEvents"'),
        ('{"traceEvents": null}', 'it has no list "traceEvents"'),
        ('{"traceEvents": []}', "no GPU operation"),
        ("[]", "no GPU operation"),
        ('{"traceEvents": [{"ph": "X"', "cut"),
        ('{"traceEvents": [{"ph": "X"}]', "cut"),
        ('{"traceEvents": [{"ph": "X", }]}', "damaged"),
        ('[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}] and more', "cut"),
        ('{"traceEvents": ' + "[" * 100_000 + "]" * 100_000 + "}", "cut"),
        ('{"distributedInfo": 3, "traceEvents": [{"ph": "X", "cat": "kernel", "dur": 1}]}', "description"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_one_clear_sentence(tmp_path, text, words):
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(TraceError, match=words) as raised:
        reader.read(path)

    assert str(path) in str(raised.value)
    assert str(raised.value).endswith((".", "?"))


def test_the_traces_of_other_makes_are_read(shared):
    (mi250,) = reader.read(next(shared.samples.glob("kineto-*MI250*.json")))
    (a100,) = reader.read(next(shared.samples.glob("kineto-*A100*.json")))

    assert mi250.gpu == "AMD Radeon Graphics"
    assert len(mi250.operations) == 6
    assert a100.rank == 0
    assert {one.name for one in a100.collectives} == {"broadcast", "allreduce"}
