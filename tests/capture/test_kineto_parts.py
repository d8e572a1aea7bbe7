"""The parts of captures with Kineto that need no process: datagrams, text, traces, the registry."""

import struct
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.capture.kineto import config_text, kineto_protocol, trace_contents
from perfd.capture.kineto.client_registry import ClientRegistry, ConfigDelivery
from perfd.capture.kineto.kineto_protocol import ConfigPoll, ContextRequest
from perfd.capture.node import trace_directory
from perfd.errors import CaptureError

I32 = st.integers(-(2**31), 2**31 - 1)
POLL = ConfigPoll(types=3, job_id=0, pids=(77, 1))
BUSY = ConfigPoll(types=1, job_id=0, pids=(77, 1))
KEY = (1077, 77)


@given(st.binary(max_size=400))
def test_garbage_is_nothing_and_no_error(datagram):
    assert kineto_protocol.decode(datagram) is None or len(datagram) >= 40


@given(st.binary(max_size=300), st.sampled_from([b"req", b"ctxt", b"requ", b"x"]), st.integers(0, 2**64 - 1))
def test_a_frame_whose_size_is_not_its_own_is_nothing(payload, kind, size):
    message = kineto_protocol.decode(struct.pack("<Q32s", size, kind) + payload)
    assert message is None or size == len(payload)


@given(I32, st.integers(-(2**63), 2**63 - 1), st.lists(I32, min_size=1, max_size=64))
def test_a_poll_survives_the_wire(types, job_id, pids):
    poll = ConfigPoll(types=types, job_id=job_id, pids=tuple(pids))
    assert kineto_protocol.decode(kineto_protocol.encode(poll)) == poll


def test_a_context_survives_the_wire():
    context = ContextRequest(gpu=-1, pid=5, job_id=2**40)
    assert kineto_protocol.decode(kineto_protocol.encode(context)) == context


def test_a_poll_of_six_pids_has_the_bytes_that_torch_sends():
    datagram = kineto_protocol.encode(ConfigPoll(types=3, job_id=0, pids=(6, 5, 4, 3, 2, 1)))
    assert len(datagram) == 80
    assert datagram[:12] == b"\x28\0\0\0\0\0\0\0req\0"
    assert datagram[40:60] == struct.pack("<iiqi", 3, 6, 0, 6)


@pytest.mark.parametrize(("types", "idle"), [(3, True), (1, False), (2, True), (0, False)])
def test_both_generations_of_libkineto_say_when_they_are_busy(types, idle):
    assert ConfigPoll(types=types, job_id=0, pids=(1,)).idle is idle


def test_an_answer_without_a_configuration_is_empty():
    kind = b"req".ljust(32, b"\0")
    assert kineto_protocol.poll_reply("") == (0).to_bytes(8, "little") + kind
    assert kineto_protocol.poll_reply("A=1\n") == (4).to_bytes(8, "little") + kind + b"A=1\n"


def order(**changes):
    settings = {
        "output": PurePosixPath("/tmp/x/trace.json"),
        "start_unix_ms": 5,
        "duration_ms": 6,
        "warmup_s": 2,
        "trace_id": "c1",
    }
    return config_text.TraceOrder(**{**settings, **changes})


def test_every_line_of_a_configuration_has_one_equals_sign():
    lines = config_text.render(order(iterations=3, iteration_roundup=50)).splitlines()
    assert all(line.count("=") == 1 for line in lines)
    keys = config_text.parse("\n".join(lines))
    assert keys["ACTIVITIES_LOG_FILE"] == "/tmp/x/trace.json"
    assert (keys["PROFILE_START_TIME"], keys["ACTIVITIES_DURATION_MSECS"]) == ("5", "6")
    assert (keys["PROFILE_START_ITERATION"], keys["PROFILE_START_ITERATION_ROUNDUP"]) == ("0", "50")
    assert keys["ACTIVITIES_ITERATIONS"] == "3"


@pytest.mark.parametrize("path", ["/tmp/a=b/trace.json", "/tmp/a\nb/trace.json", "/tmp/trace"])
def test_a_path_that_libkineto_would_misread_is_refused(path):
    with pytest.raises(CaptureError, match="libkineto"):
        config_text.render(order(output=PurePosixPath(path)))


def test_an_order_is_handed_out_once():
    registry = ClientRegistry()
    registry.order(KEY, "A=1", before_s=10)
    assert registry.poll(POLL, 1077, 1.0) == "A=1"
    assert registry.poll(POLL, 1077, 6.0) == ""
    assert registry.delivery(KEY) is ConfigDelivery.DELIVERED
    registry.poll(BUSY, 1077, 7.0)
    assert registry.delivery(KEY) is ConfigDelivery.ACCEPTED


def test_an_answer_that_could_not_be_sent_is_given_again():
    registry = ClientRegistry()
    registry.order(KEY, "A=1", before_s=10)
    registry.poll(POLL, 1077, 1.0)
    registry.undelivered(KEY)
    assert registry.poll(POLL, 1077, 2.0) == "A=1"


@pytest.mark.parametrize(("poll", "now_s"), [(POLL, 10.1), (BUSY, 1.0)])
def test_an_order_that_comes_too_late_or_to_a_busy_profiler_is_not_given(poll, now_s):
    registry = ClientRegistry()
    registry.order(KEY, "A=1", before_s=10)
    assert registry.poll(poll, 1077, now_s) == ""
    assert registry.delivery(KEY) is ConfigDelivery.MISSED


def test_strangers_get_nothing():
    registry = ClientRegistry()
    registry.order(KEY, "A=1", before_s=10)
    assert registry.poll(POLL, 2077, 1.0) == ""
    assert registry.poll(ConfigPoll(types=3, job_id=0, pids=(78, 77)), 1077, 1.0) == ""
    assert registry.delivery(KEY) is ConfigDelivery.WAITING


def test_the_next_poll_is_foreseen_from_the_phase_of_each_process():
    registry = ClientRegistry()
    registry.poll(POLL, 1077, 100.0)
    registry.poll(POLL, 1077, 101.0)
    registry.poll(ConfigPoll(types=3, job_id=0, pids=(9,)), 0, 101.0)
    known, new = registry.clients(101.4)
    assert known.next_poll_s == pytest.approx(0.6)
    assert new.next_poll_s == pytest.approx(4.6), "until it is measured, libkineto's own 5 s"
    assert registry.clients(200.0) == []


def test_a_pause_as_without_a_daemon_is_no_period():
    registry = ClientRegistry()
    registry.poll(POLL, 1077, 0.0)
    registry.poll(POLL, 1077, 30.0)
    assert registry.clients(30.0)[0].period_s == 5.0


def write(path, content):
    path.write_bytes(content)
    return path


def test_a_trace_is_judged_by_its_categories(tmp_path):
    host = b'{"traceEvents": [{"ph": "M"}, {"cat": "cpu_op"}]}'
    gpu = b'{"traceEvents": [{"cat": "cpu_op"}, {"cat": "kernel"}], "traceName": "x"}'
    assert trace_contents.contents_of(write(tmp_path / "a", host)).work is trace_contents.TraceWork.HOST
    assert trace_contents.contents_of(write(tmp_path / "b", gpu)).work is trace_contents.TraceWork.GPU
    assert (
        trace_contents.contents_of(write(tmp_path / "c", b'{"traceEvents": [{"ph": "M"}]}')).work
        is trace_contents.TraceWork.NONE
    )


@given(st.integers(0, 70))
def test_a_trace_that_was_cut_anywhere_is_not_whole(tmp_path_factory, length):
    whole = b'{"traceEvents": [{"cat": "kernel", "args": {"x": [1]}}], "traceName": "x"}'
    path = write(tmp_path_factory.mktemp("cut") / "t", whole[:length])
    with pytest.raises(CaptureError, match=r"incomplete|empty"):
        trace_contents.contents_of(path)


def test_a_large_trace_is_judged_by_its_end_and_its_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_contents, "_DECODED_BYTES", 10)
    events = b'{"traceEvents": [{"cat": "kernel", "args": {"x": [1], "y": 2}}]'
    groups = b', "distributedInfo": {"pg_config": [{"ranks": [0, 1]}, {"ranks": []}]}, "traceName": "x"}'
    log = b', "INFO": ["a", "b]"]}'
    for whole in (events + b', "traceName": "x"}', events + groups, events + log):
        assert trace_contents.contents_of(write(tmp_path / "a", whole)).work is trace_contents.TraceWork.GPU
        for cut in (1, 20, len(whole) - len(events) + 1):
            with pytest.raises(CaptureError, match="end is missing"):
                trace_contents.contents_of(write(tmp_path / "b", whole[:-cut]))


@pytest.mark.parametrize("place", ["relative", "/a/../b", "/a=b", "/a!b"])
def test_a_place_that_is_no_plain_path_is_refused(tmp_path, place):
    with pytest.raises(CaptureError, match="KINETO_ONDEMAND_TRACE_DIR"):
        trace_directory.plan_trace_directory(
            tmp_path, 1, place, source="KINETO_ONDEMAND_TRACE_DIR", profiler="kineto"
        )


def test_a_link_on_the_way_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "tmp").symlink_to(tmp_path / "real")
    box = trace_directory.TraceDirectory(root=tmp_path, place=PurePosixPath("/tmp"), name="perfd-kineto-x")
    with pytest.raises(CaptureError, match="Cannot create"):
        box.create(0, 0)
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("handle", ["perfd.llama.1", "/!/etc!passwd", "/!/tmp!perfd-kineto-a/../b", "!!"])
def test_a_handle_of_something_else_names_no_folder(handle):
    assert trace_directory.trace_directory_of(handle) is None


def test_a_handle_finds_its_folder_again(tmp_path):
    box = trace_directory.TraceDirectory(root=tmp_path, place=PurePosixPath("/"), name="perfd-kineto-x")
    (tmp_path / box.name).mkdir()
    again = trace_directory.trace_directory_of(box.handle)
    assert again == box
    again.remove()
    again.remove()
    assert list(tmp_path.iterdir()) == []
