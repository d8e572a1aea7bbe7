"""How many whole steps a trace holds, told by the trace itself."""

import gzip
import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.capture.kineto.trace_contents import contents_of
from perfd.capture.nsys.report_contents import recorded_by_process
from perfd.trace.model.step_coverage import Recorded, Span, whole_steps
from perfd.trace.model.trace_steps import TraceStep
from tests.support.traces import COMPUTE, MATMUL, NsysExport

MS = 1_000_000
ADAM = (
    "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>, "
    "at::native::FusedOptimizerTensorListMetadata<4>, at::native::FusedAdamMathFunctor<float, 4>>(...)"
)
FOREACH_ADD = (
    "void at::native::multi_tensor_apply_kernel<..., at::native::BinaryOpListAlphaFunctor<float>>(...)"
)
FOREACH_COPY = "void at::native::multi_tensor_apply_kernel<..., at::native::CopyFunctor<float, float>>(...)"
NORM = "void at::native::multi_tensor_apply_kernel<..., at::native::LpNormFunctor<float, 1>>(...)"
LAYERS = 4


def a_step(*, updates=3, layers=LAYERS, update=ADAM):
    """The kernels of one step: forward, backward, update."""
    forward = [MATMUL, COMPUTE, FOREACH_COPY] * layers
    backward = [COMPUTE, MATMUL, MATMUL] * layers
    return [*forward, *backward, NORM, *[update] * updates]


def recorded(names, *, each_ms=1, stream=7, **more):
    """One kernel after the other."""
    starts = [at * each_ms * MS for at in range(len(names))]
    return Recorded(
        starts_ns=starts,
        ends_ns=[start + each_ms * MS // 2 for start in starts],
        streams=[stream] * len(names),
        names=names,
        **more,
    )


steps = st.integers(0, 12)
times = st.sampled_from([None, "known"])
updates = st.sampled_from([ADAM, FOREACH_ADD])


@given(
    steps, st.floats(0, 1), st.floats(0, 0.97), times, st.sampled_from([ADAM, FOREACH_ADD]), st.integers(1, 5)
)
def test_from_update_to_update_is_a_step_wherever_the_capture_was_cut(
    count, begins, ends, known, update, each
):
    step = a_step(update=update, updates=each)
    body = len(step) - each
    head, tail = step[round(begins * body) : body] + [update] * each, step[: round(ends * body)]
    trace = recorded([*head, *step * count, *tail])
    step_time_s = None if known is None else len(step) / 1000
    assert whole_steps(trace, step_time_s) == count


@given(steps, st.integers(1, 9))
def test_an_update_that_the_end_of_the_capture_cut_ends_no_step(count, left):
    step = a_step(updates=10)
    trace = recorded([*step, *step * count, *step[: len(step) - 10 + left - 1]])
    assert whole_steps(trace) == count


@given(st.integers(2, 8))
def test_a_job_that_updates_layer_by_layer_makes_one_step_of_them(count):
    forward = [MATMUL, COMPUTE] * 40
    backward = [MATMUL, ADAM] * 12
    trace = recorded((forward + backward) * count)
    assert whole_steps(trace) == count - 1
    assert whole_steps(trace, (len(forward) + len(backward)) / 1000) == count - 1


@given(steps, st.integers(0, 20))
def test_without_an_optimizer_known_by_name_the_repeats_of_the_sequence_are_counted(count, more):
    step = [f"kernel {at % 7}" for at in range(40)] + ["once a step"] * 2
    trace = recorded([*step * count, *step[:more]])
    whole = whole_steps(trace, len(step) / 1000)
    assert whole == count if count >= 2 else whole in (0, None)


def test_layers_that_repeat_are_no_steps():
    trace = recorded([MATMUL, COMPUTE, MATMUL] * 300)
    assert whole_steps(trace) is None
    assert whole_steps(trace, 10.0) == 0, "less time than a step takes"


def test_a_sequence_that_does_not_repeat_shows_nothing():
    names = [f"kernel {at}" for at in range(100)]
    assert whole_steps(recorded(names), 0.01) is None


def test_of_two_streams_the_busier_one_shows_the_repeats():
    step = [f"kernel {at % 7}" for at in range(40)] + ["once a step"]
    names = [name for name in step * 4 for name in (name,)]
    one = recorded(names)
    # Another stream's kernels fall between them differently in each step.
    rows = [(start, end, 7, name) for start, end, name in zip(one.starts_ns, one.ends_ns, names, strict=True)]
    rows += [(at * 3_700_000, at * 3_700_000 + 9, 8, "other") for at in range(30)]
    rows.sort()
    starts, ends, streams, names = zip(*rows, strict=True)
    both = Recorded(starts_ns=starts, ends_ns=ends, streams=streams, names=names)
    assert whole_steps(both, len(step) / 1000) == 4


def test_marked_steps_win_over_everything_else():
    step = a_step()
    length = len(step) * MS
    marked = [TraceStep(number=at, start_ns=at * length, end_ns=(at + 1) * length) for at in range(3)]
    trace = recorded(step * 3, steps=marked, captured_ns=(0, 3 * length))
    assert whole_steps(trace) == 2, "what is open where the capture stops is no whole one"
    assert whole_steps(replace(trace, captured_ns=None)) == 3


@given(st.integers(1, 5), st.integers(0, 5))
def test_marked_steps_before_the_gpu_is_recorded_do_not_count(count, before):
    length = 1000 * MS
    marked = [
        TraceStep(number=at, start_ns=at * length, end_ns=(at + 1) * length) for at in range(before + count)
    ]
    trace = Recorded(steps=marked, recorded_from_ns=before * length - length // 2)
    assert whole_steps(trace) == count


def test_calls_of_the_optimizer_on_the_host_show_steps_without_a_gpu():
    updates = [Span(start_ns=at * 50 * MS, end_ns=at * 50 * MS + MS) for at in range(6)]
    assert whole_steps(Recorded(updates=updates)) == 5
    chained = [Span(start_ns=one.end_ns + 1000, end_ns=one.end_ns + MS) for one in updates]
    both = sorted([*updates, *chained], key=lambda span: span.start_ns)
    assert whole_steps(Recorded(updates=both)) == 5, "two optimizers, one after the other"


names = st.sampled_from([ADAM, MATMUL, COMPUTE, NORM, "x", ""])
columns = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**9), st.integers(0, 2), names))


@given(columns, st.one_of(st.none(), st.floats(1e-6, 1e3)))
def test_whatever_was_recorded_there_are_never_more_steps_than_kernels(rows, step_time_s):
    rows.sort(key=lambda row: row[0])
    trace = Recorded(
        starts_ns=[start for start, _, _, _ in rows],
        ends_ns=[start + length for start, length, _, _ in rows],
        streams=[stream for _, _, stream, _ in rows],
        names=[name for _, _, _, name in rows],
    )
    whole = whole_steps(trace, step_time_s)
    assert whole is None or 0 <= whole <= len(rows)


def test_an_export_shows_each_process_by_itself(tmp_path):
    export = NsysExport(tmp_path / "x.sqlite")
    for process, count in ((11, 4), (12, 2)):
        for at, name in enumerate(a_step() * count):
            export.kernel(name, at * MS, at * MS + 1000, process=process)
    counts = {pid: whole_steps(one) for pid, one in recorded_by_process(export.close()).items()}
    assert counts == {11: 3, 12: 1}


def test_ranges_of_an_export_that_began_before_cupti_was_on_are_no_whole_steps(tmp_path):
    export = NsysExport(tmp_path / "x.sqlite")
    for at in range(10):
        export.nvtx(f"iteration {at}", at * 100 * MS, (at + 1) * 100 * MS)
    for at in range(35, 100):
        export.kernel(MATMUL, at * 10 * MS, at * 10 * MS + MS, launched=at * 10 * MS)
    export.captured(1000 * MS)
    (one,) = recorded_by_process(export.close()).values()
    assert whole_steps(one) == 5, "4 to 8: the GPU is recorded from 350 ms on, and 9 is open at the end"


def test_the_real_nsys_capture_holds_one_step_between_its_two_updates(tmp_path, shared):
    real = tmp_path / "real.sqlite"
    with gzip.open(shared.nsys) as packed, real.open("wb") as file:
        shutil.copyfileobj(packed, file)
    found = recorded_by_process(real)
    assert [whole_steps(one) for one in found.values()] == [1] * 4
    assert [whole_steps(one, 0.75) for one in found.values()] == [1] * 4


@pytest.mark.parametrize("rank", range(4))
def test_the_real_kineto_traces_hold_two_marked_steps_and_one_between_updates(rank, shared):
    found = contents_of(shared.kineto[rank]).recorded
    assert whole_steps(found) == 2
    assert whole_steps(replace(found, steps=())) == 1
    assert whole_steps(replace(found, steps=(), updates=())) == 1
