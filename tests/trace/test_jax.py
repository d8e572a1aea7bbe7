"""JAX's traces: devices are processes, streams are threads, and operations are HLO."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest

from perfd.errors import TraceError
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.diagnosis.trace_json import to_json
from perfd.trace.model.hlo_names import hlo_class
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.readers import kineto_reader
from perfd.trace.readers.trace_files import read_traces
from tests.support.traces import write_json

RECORDED = Path(__file__).parent.parent / "fixtures/traces/jax-0.11-2xh200.trace.json.gz"
CLASSES = {
    "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT": "matmul",
    "gemm_fusion_dot_8": "matmul",
    "gemm_fusion_dot_11": "matmul",
    "gemm_fusion_dot_13": "matmul",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "all_reduce_4_0_fusion_1": "communication",  # XLA's own, of the loss: one block that waits for its peers.
    "loop_add_fusion": "elementwise",
    "loop_convert_fusion": "elementwise",
    "loop_convert_multiply_fusion_2": "elementwise",
    "loop_multiply_fusion": "elementwise",
    "loop_subtract_fusion": "elementwise",
    "loop_subtract_fusion_3": "elementwise",
    "input_add_reduce_fusion": "reduction",
    "input_reduce_fusion": "reduction",
    "wrapped_concatenate": "copy",
    "memcpy128": "copy",
    "MemcpyD2D": "copy",
    "Memset 0": "copy",
}
"""By the names of all that ran in it."""


def _named(what, process, name, thread=None):
    event = {"ph": "M", "pid": process, "name": what, "args": {"name": name}}
    return event if thread is None else event | {"tid": thread}


def _ran(process, thread, name, start, duration, **args):
    return {
        "ph": "X", "pid": process, "tid": thread, "name": name, "ts": start, "dur": duration, "args": args,
    }  # fmt: skip


def _gpu(process, number):
    return [
        _named("process_name", process, f"/device:GPU:{number}"),
        _named("thread_name", process, "Stream #13(Compute)", 13),
        _named("thread_name", process, "Stream #14(MemcpyH2D)", 14),
        _named("thread_name", process, "XLA Modules", 900),
        _named("thread_name", process, "Steps", 901),
        _ran(process, 13, "loop_add_fusion", 10, 5, hlo_op="loop_add_fusion.2", correlation_id="4"),
        _ran(process, 13, "gemm_fusion_dot_9", 20, 30, hlo_op="gemm_fusion_dot.9"),
        _ran(process, 13, "ncclDevKernel_AllReduce", 60, 10, hlo_op="all-reduce-start.1"),
        _ran(process, 14, "MemcpyH2D", 80, 5),
        _ran(process, 900, "jit_train_step(123)", 10, 75),
        _ran(process, 901, "7", 5, 90),
    ]


def _trace(*parts):
    host = [_named("process_name", 701, "/host:CPU"), _ran(701, 1, "PjitFunction(step)", 0, 100)]
    events = [event for part in (host, *parts) for event in part]
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*events, {}]}


def test_only_streams_of_a_gpu_are_its_operations(tmp_path):
    (trace,) = kineto_reader.read(write_json(tmp_path / "t.json.gz", _trace(_gpu(1, 0)), packed=True))

    assert trace.device == 0
    assert [trace.names[at] for at in trace.operations.name] == [
        "loop_add_fusion",
        "gemm_fusion_dot_9",
        "ncclDevKernel_AllReduce",
        "MemcpyH2D",
    ]
    assert trace.operations.kind.tolist() == [
        OperationKind.COMPUTE,
        OperationKind.COMPUTE,
        OperationKind.COMMUNICATION,
        OperationKind.MEMORY,
    ]
    assert [trace.classes[at] for at in trace.operations.name] == [
        "elementwise",
        "matmul",
        "communication",
        "copy",
    ]


def test_the_row_of_steps_gives_the_steps(tmp_path):
    (trace,) = kineto_reader.read(write_json(tmp_path / "t.json", _trace(_gpu(1, 0))))

    (step,) = trace.steps
    assert (step.number, step.start_ns, step.end_ns) == (7, 5_000, 95_000)


def test_steps_that_only_the_host_marks_are_taken_from_there(tmp_path):
    events = [event for event in _gpu(1, 0) if event.get("tid") != 901]
    marked = [_ran(701, 1, "train", 0, 50, step_num="3"), _ran(701, 1, "train", 50, 50, step_num=4)]

    (trace,) = kineto_reader.read(write_json(tmp_path / "t.json", _trace(events, marked)))

    assert [step.number for step in trace.steps] == [3, 4]


@pytest.mark.parametrize("duration", [4e15, 1e18, -1])
def test_a_step_whose_time_cannot_be_is_left_out(tmp_path, duration):
    events = [event for event in _gpu(1, 0) if event.get("tid") != 901]
    marked = [_ran(701, 1, "train", 0, 50, step_num=3), _ran(701, 1, "train", 50, duration, step_num=4)]

    (trace,) = traces = read_traces([write_json(tmp_path / "t.json", _trace(events, marked))])

    assert [step.number for step in trace.steps] == [3]
    assert analyse(traces)


def test_each_gpu_of_the_process_is_a_rank(tmp_path):
    traces = read_traces([write_json(tmp_path / "t.json", _trace(_gpu(1, 0), _gpu(2, 1)))])

    assert [trace.rank for trace in traces] == [0, 1]


def test_a_tpu_has_its_operations_on_one_row(tmp_path):
    events = [
        _named("process_name", 3, "/device:TPU:0"),
        _named("thread_name", 3, "XLA Ops", 1),
        _named("thread_name", 3, "XLA Modules", 2),
        _ran(3, 1, "fusion.12", 5, 10, hlo_category="convolution fusion"),
        _ran(3, 1, "infeed.1", 20, 10),
        _ran(3, 2, "jit_step", 5, 30),
    ]

    (trace,) = kineto_reader.read(write_json(tmp_path / "t.json", _trace(events)))

    assert [trace.classes[at] for at in trace.operations.name] == ["convolution", "infeed"]


def test_a_trace_of_the_host_alone_has_no_gpu_operation(tmp_path):
    with pytest.raises(TraceError, match="no GPU operation"):
        kineto_reader.read(write_json(tmp_path / "t.json", _trace()))


def swept(operations, start, end):
    """Seconds of a window in which each set of kinds ran, by a sweep over every begin and end."""
    changes = {start, end}
    for begin, finish, _ in operations:
        changes |= {min(max(begin, start), end), min(max(finish, start), end)}
    seconds = {}
    for begin, finish in pairwise(sorted(changes)):
        running = frozenset(kind for s, e, kind in operations if s <= begin and e >= finish)
        seconds[running] = seconds.get(running, 0.0) + (finish - begin) / 1e6
    return seconds


def test_what_is_said_of_a_real_trace_is_what_a_sweep_over_its_events_gives():
    events = json.loads(gzip.decompress(RECORDED.read_bytes()))["traceEvents"]
    steps = [event for event in events if "step_num" in event.get("args", {})]
    start, end = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    analysis = analyse(read_traces([RECORDED]))
    document = to_json(analysis, diagnose(analysis))
    assert [(rank["rank"], len(rank["steps"])) for rank in document["ranks"]] == [(0, 5), (1, 5)]
    for rank, process in zip(document["ranks"], (1, 2), strict=True):
        ran = [e for e in events if e.get("ph") == "X" and e["pid"] == process]
        seconds = swept(
            [(e["ts"], e["ts"] + e["dur"], CLASSES[e["name"]]) for e in ran],
            start,
            end,
        )

        def all_with(label, seconds=seconds):
            return sum(time_s for running, time_s in seconds.items() if label in running)

        compute = sum(t for running, t in seconds.items() if running - {"copy", "communication"})
        expected = {
            "span_s": (end - start) / 1e6,
            "compute_s": compute,
            "communication_s": all_with("communication"),
            "memory_s": all_with("copy"),
            "exposed_communication_s": seconds[frozenset({"communication"})],
            "idle_s": seconds[frozenset()],
        }
        near = 1e-6 * expected["span_s"]
        assert {key: rank[key] for key in expected} == pytest.approx(expected, abs=near)
        assert {row["name"]: row["class"] for row in rank["kernels"]}.items() <= CLASSES.items()
        assert any("came after the host had ended its last step" in note for note in rank["notes"])


def test_each_operation_of_a_real_trace_has_its_class():
    for trace in read_traces([RECORDED]):
        used = set(trace.operations.name.tolist())
        assert {trace.names[at]: trace.classes[at] for at in used} == CLASSES


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("%dot.5", "matmul"),
        ("cublas-gemm.1", "matmul"),
        ("custom-call.3$cutlass", "matmul"),
        ("all-gather-start.2", "communication"),
        ("reduce-scatter.8", "communication"),
        ("collective-permute-done.1", "communication"),
        ("send-done.1", "communication"),
        ("all_reduce.4", "communication"),
        ("reduce.19", "reduction"),
        ("loop_multiply_fusion.3", "elementwise"),
        ("copy-start.1", "copy"),
        ("wrapped_copy.2", "copy"),
        ("wrapped_slice.2", "copy"),
        ("wrapped_concatenate", "copy"),
        ("wrapped_add.1", "elementwise"),
        ("infeed.2", "infeed"),
        ("outfeed.2", "infeed"),
        ("rng-bit-generator.1", "other"),
    ],
)
def test_hlo_operations_are_classed_by_name(name, expected):
    assert hlo_class(name) == expected
