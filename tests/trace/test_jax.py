"""JAX's traces: devices are processes, streams are threads, and operations are HLO."""

from __future__ import annotations

import pytest

from perfd.errors import TraceError
from perfd.testing.traces import write_json
from perfd.trace import kineto
from perfd.trace.files import read_traces
from perfd.trace.hlo import hlo_class
from perfd.trace.kinds import Kind


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
    (trace,) = kineto.read(write_json(tmp_path / "t.json.gz", _trace(_gpu(1, 0)), packed=True))

    assert trace.device == 0
    assert [trace.names[at] for at in trace.operations.name] == [
        "loop_add_fusion",
        "gemm_fusion_dot_9",
        "ncclDevKernel_AllReduce",
        "MemcpyH2D",
    ]
    assert trace.operations.kind.tolist() == [
        Kind.COMPUTE,
        Kind.COMPUTE,
        Kind.COMMUNICATION,
        Kind.MEMORY,
    ]
    assert [trace.classes[at] for at in trace.operations.name] == [
        "elementwise",
        "matmul",
        "communication",
        "copy",
    ]


def test_the_row_of_steps_gives_the_steps(tmp_path):
    (trace,) = kineto.read(write_json(tmp_path / "t.json", _trace(_gpu(1, 0))))

    (step,) = trace.steps
    assert (step.number, step.start_ns, step.end_ns) == (7, 5_000, 95_000)


def test_steps_that_only_the_host_marks_are_taken_from_there(tmp_path):
    events = [event for event in _gpu(1, 0) if event.get("tid") != 901]
    marked = [_ran(701, 1, "train", 0, 50, step_num="3"), _ran(701, 1, "train", 50, 50, step_num=4)]

    (trace,) = kineto.read(write_json(tmp_path / "t.json", _trace(events, marked)))

    assert [step.number for step in trace.steps] == [3, 4]


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

    (trace,) = kineto.read(write_json(tmp_path / "t.json", _trace(events)))

    assert [trace.classes[at] for at in trace.operations.name] == ["convolution", "infeed"]


def test_a_trace_of_the_host_alone_has_no_gpu_operation(tmp_path):
    with pytest.raises(TraceError, match="no GPU operation"):
        kineto.read(write_json(tmp_path / "t.json", _trace()))


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
        ("infeed.2", "infeed"),
        ("outfeed.2", "infeed"),
        ("rng-bit-generator.1", "other"),
    ],
)
def test_hlo_operations_are_classed_by_name(name, expected):
    assert hlo_class(name) == expected
