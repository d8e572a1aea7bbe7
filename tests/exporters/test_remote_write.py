"""Remote write: what is in the requests, and what becomes of samples when the other side is not well."""

import math
import struct

import cramjam
import numpy as np
import pytest
from exporters.support import Receiver, context, frame
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from perfd.clock import VirtualClock
from perfd.config import HttpClientConfig, RemoteWriteConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import ExporterTally, Round
from perfd.exporters.remote_write.remote_write_exporter import FrameEncoder, RemoteWriteExporter
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.net.http import Response

STALE = 0x7FF0000000000002
A, B = SeriesKey("perfd_a"), SeriesKey("perfd_b")
NOW_S = 1_700_000_000.0


def write_request_type():
    """prometheus.WriteRequest of remote write 1.0, read by protobuf's own code."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="remote.proto", package="prometheus", syntax="proto3")

    def message(name, *fields):
        made = file.message_type.add(name=name)
        for number, (label, kind, type_name, field_name) in enumerate(fields, start=1):
            made.field.add(
                name=field_name, number=number, label=label, type=kind, type_name=type_name or None
            )

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    message("Label", (one, field.TYPE_STRING, "", "name"), (one, field.TYPE_STRING, "", "value"))
    message("Sample", (one, field.TYPE_DOUBLE, "", "value"), (one, field.TYPE_INT64, "", "timestamp"))
    message(
        "TimeSeries",
        (many, field.TYPE_MESSAGE, ".prometheus.Label", "labels"),
        (many, field.TYPE_MESSAGE, ".prometheus.Sample", "samples"),
    )
    message("WriteRequest", (many, field.TYPE_MESSAGE, ".prometheus.TimeSeries", "timeseries"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))


WriteRequest = write_request_type()


def decoded(data):
    """Every sample of a body, as (labels, value, milliseconds); None is a stale marker."""
    samples = []
    for series in WriteRequest.FromString(data).timeseries:
        labels = [(label.name, label.value) for label in series.labels]
        assert labels == sorted(labels)
        [sample] = series.samples
        stale = struct.unpack("<Q", struct.pack("<d", sample.value))[0] == STALE
        samples.append((dict(labels), None if stale else sample.value, sample.timestamp))
    return samples


def encoded(encoder, frames):
    return [sample for body in encoder.encode(frames) for sample in decoded(body.data)]


def exporter(url, given_context, **config):
    return RemoteWriteExporter(RemoteWriteConfig(url=url, interval_s=1.0, **config), given_context)


def at_now(receiver_context=None):
    return receiver_context or context(VirtualClock(round(NOW_S * 1e9)))


def play(exporter_, given_context, seconds, *values):
    """One round a second, on time."""
    for _ in range(seconds):
        now_s = given_context.clock.unix_ns() / 1e9
        exporter_.export(Round(time_unix_s=now_s, frames={"g": frame(now_s, *values)}))
        given_context.clock.advance(1.0)


keys = st.builds(
    SeriesKey.of,
    st.sampled_from(["perfd_a", "perfd_b:c", "up"]),
    st.dictionaries(st.sampled_from(["job", "Zone", "a", "rank"]), st.text(max_size=200), max_size=4),
)
rounds = st.lists(st.dictionaries(keys, st.floats() | st.none(), max_size=5), min_size=1, max_size=4)


@given(rounds, st.integers(1, 4), st.sampled_from([1.0, 100.0, 16_000.0, NOW_S]))
def test_whatever_series_come_and_go_the_requests_say_so(history, max_samples, start_s):
    encoder = FrameEncoder({"cluster": "c\u00f6ln", "job": "outer"}, max_samples)
    before = set()
    for number, values in enumerate(history):
        numbers = np.array([math.nan if value is None else value for value in values.values()], np.float64)
        made = SeriesFrame(start_s + number, tuple(values), numbers)
        found = encoded(encoder, {"g": made})
        present = {key: value for key, value in zip(values, numbers.tolist(), strict=True) if value == value}
        expected = [
            ({"cluster": "c\u00f6ln", "job": "outer", **dict(k.labels), "__name__": k.name}, v)
            for k, v in present.items()
        ]
        assert [(labels, value) for labels, value, _ in found if value is not None] == expected
        ended = [labels for labels, value, _ in found if value is None]
        assert len(ended) == len(before - present.keys()) or len(f"{int(start_s)}") != len(
            f"{int(start_s + number)}"
        )
        assert all(time == round((start_s + number) * 1000) for _, _, time in found)
        before = set(present)


def test_a_series_that_vanishes_is_ended_once_and_one_that_returns_goes_on():
    encoder = FrameEncoder({}, 100)
    both = (A, B)
    seen = [
        [
            (labels["__name__"], value)
            for labels, value, _ in encoded(encoder, {"g": frame(NOW_S + n, *v, keys=k)})
        ]
        for n, (v, k) in enumerate(
            [
                ((1.0, 2.0), both),
                ((1.0, math.nan), both),
                ((1.0, math.nan), both),
                ((1.0, 5.0), both),
                ((1.0,), (A,)),
                ((), ()),
            ]
        )
    ]
    a, b = ("perfd_a", 1.0), ("perfd_b", 2.0)
    assert seen == [
        [a, b],
        [a, ("perfd_b", None)],
        [a],
        [a, ("perfd_b", 5.0)],
        [a, ("perfd_b", None)],
        [("perfd_a", None)],
    ]


def test_a_frame_that_is_not_newer_is_not_sent_again():
    encoder = FrameEncoder({}, 100)
    assert len(encoded(encoder, {"g": frame(NOW_S, 1.0)})) == 1
    assert encoded(encoder, {"g": frame(NOW_S, 1.0)}) == []
    assert encoded(encoder, {"g": frame(NOW_S - 1.0, 1.0)}) == []


def test_requests_hold_as_many_samples_as_configured():
    encoder = FrameEncoder({}, 4)
    bodies = list(encoder.encode({"a": frame(NOW_S, *range(3)), "b": frame(NOW_S, *range(6))}))
    assert [body.samples for body in bodies] == [4, 4, 1]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_samples_wait_for_a_server_that_is_not_well_and_none_is_lost(status):
    given_context = at_now()
    with Receiver() as receiver:
        receiver.answer = lambda _: Response(body=b"", status=status)
        sender = exporter(receiver.url, given_context)
        play(sender, given_context, 3, 1.0, 2.0)
        refused = len(receiver.requests)
        receiver.answer = lambda _: Response(body=b"", status=204)
        play(sender, given_context, 7, 1.0, 2.0)
        sender.close()
        times = [
            sample[2]
            for request in receiver.requests[refused:]
            for sample in decoded(bytes(cramjam.snappy.decompress_raw(request.body)))
        ]
    assert times == sorted(times)
    assert (given_context.tally.sent, given_context.tally.lost, given_context.tally.pending) == (20, 0, 0)
    assert given_context.tally.retries == refused < 3


def test_what_the_server_refuses_is_counted_and_not_sent_again(caplog):
    given_context = at_now()
    with Receiver() as receiver:
        receiver.answer = lambda _: Response(body=b"out of order sample", status=400)
        sender = exporter(receiver.url, given_context)
        play(sender, given_context, 3, 1.0)
        receiver.answer = lambda _: Response(body=b"", status=204)
        play(sender, given_context, 2, 1.0)
        sender.close()
    assert given_context.tally == ExporterTally(sent=2, lost=3, retries=0, pending=0)
    assert len([record for record in caplog.records if "refuses samples" in record.message]) == 1


def test_beyond_the_bound_the_oldest_samples_go_and_are_counted():
    given_context = at_now()
    sender = exporter("http://127.0.0.1:9/api/v1/write", given_context, max_pending_bytes=200)
    play(sender, given_context, 20, 1.0)
    assert given_context.tally.lost + given_context.tally.pending == 20
    assert 0 < given_context.tally.pending < 20
    sender.close()
    assert (given_context.tally.lost, given_context.tally.pending) == (20, 0)


def test_while_the_server_is_slow_rounds_are_taken_and_sent_together_later():
    given_context = at_now()
    with Receiver() as receiver:

        def slow(_):
            given_context.clock.advance(10.0)
            return Response(body=b"", status=204)

        receiver.answer = slow
        sender = exporter(receiver.url, given_context)
        for second in range(9):
            now_s = NOW_S + second
            sender.export(Round(time_unix_s=now_s, frames={"g": frame(now_s, 1.0)}))
        assert len(receiver.requests) == 1
        assert given_context.tally.pending == 8
        receiver.answer = lambda _: Response(body=b"", status=204)
        play(sender, given_context, 1, 1.0)
        assert given_context.tally == ExporterTally(sent=10, lost=0, retries=0, pending=0)
        sender.close()


def test_the_requests_are_those_of_remote_write_1_0(tmp_path):
    (tmp_path / "token").write_text("swordfish")
    given_context = at_now()
    with Receiver() as receiver:
        http = HttpClientConfig(bearer_token_file=str(tmp_path / "token"), headers={"X-Scope-OrgID": "team"})
        sender = exporter(receiver.url, given_context, http=http)
        play(sender, given_context, 1, 1.0)
        sender.close()
        headers = receiver.requests[0].headers
    assert headers["content-encoding"] == "snappy"
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["x-prometheus-remote-write-version"] == "0.1.0"
    assert headers["user-agent"].startswith("perfd/")
    assert headers["authorization"] == "Bearer swordfish"
    assert headers["x-scope-orgid"] == "team"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"url": None}, "url"),
        ({"url": "ftp://x"}, "ftp://x"),
        ({"url": "http://x", "max_samples_per_request": 0}, "at least 1"),
        ({"url": "http://x", "external_labels": {"__name__": "x"}}, "__name__"),
    ],
)
def test_a_mistake_in_the_configuration_is_reported_at_the_start(config, words):
    with pytest.raises(ConfigError, match=words):
        RemoteWriteExporter(RemoteWriteConfig(**config), context())
