"""OTLP to a receiver that reads it with OpenTelemetry's own types."""

import gzip
import math

import pytest
from exporters.support import Receiver, context, frame
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from perfd.config import ExportersConfig, OtlpConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import Round
from perfd.exporters.exporter_registry import ExporterRegistry
from perfd.exporters.otlp import OtlpExporter
from perfd.metrics.series import SeriesKey
from perfd.net.http import Response

GPU = {"node": "n1", "instance": "n1", "gpu": "3", "namespace": "team-a", "perfd_job": "llm"}
POD = {**GPU, "cluster": "c", "pod": "llm-0", "container": "main"}


def sent(receiver):
    """The requests as a collector would read them."""
    found = []
    for request in receiver.requests:
        assert request.headers["content-type"] == "application/x-protobuf"
        found.append(ExportMetricsServiceRequest.FromString(gzip.decompress(request.body)))
    return found


def metrics(requests):
    """The metrics by name; each name is once in a request."""
    return {
        metric.name: metric
        for request in requests
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def texts(attributes):
    return {one.key: one.value.string_value for one in attributes}


def exported(*series, **config):
    """What a receiver got of one round; `series` are name, labels and value."""
    with Receiver() as receiver:
        given = context()
        tested = OtlpExporter(OtlpConfig(url=receiver.url, **config), given)
        keys = [SeriesKey.of(name, labels) for name, labels, _ in series]
        values = [value for _, _, value in series]
        tested.export(Round(time_unix_s=100.0, frames={"a": frame(100.0, *values, keys=keys)}))
        tested.close()
        return sent(receiver), given.tally


def test_every_series_keeps_its_name_and_labels():
    requests, tally = exported(("perfd_step", {"perfd_job": "llm"}, 7.0), ("perfd_ticks_total", {}, 3.0))
    found = metrics(requests)
    assert set(found) == {"perfd_step", "perfd_ticks_total"}
    (point,) = found["perfd_step"].gauge.data_points
    assert (point.as_double, point.time_unix_nano) == (7.0, 100_000_000_000)
    assert texts(point.attributes) == {"perfd_job": "llm"}
    total = found["perfd_ticks_total"].sum
    assert total.is_monotonic
    assert total.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert (tally.sent, tally.lost, tally.pending) == (2, 0, 0)


def test_gpus_are_under_the_names_of_the_conventions_too():
    requests, tally = exported(
        ("perfd_gpu_busy_ratio", POD, 0.5),
        ("perfd_gpu_memory_used_bytes", POD, 8e9),
        ("perfd_gpu_energy_joules_total", GPU, 9.0),
        ("perfd_gpu_tensor_active_ratio", GPU, 0.4),
    )
    found = metrics(requests)
    assert set(found) == {
        "perfd_gpu_busy_ratio", "perfd_gpu_memory_used_bytes", "perfd_gpu_energy_joules_total",
        "perfd_gpu_tensor_active_ratio", "hw.gpu.utilization", "hw.gpu.memory.usage", "hw.energy",
    }  # fmt: skip
    (busy,) = found["hw.gpu.utilization"].gauge.data_points
    assert (found["hw.gpu.utilization"].unit, busy.as_double) == ("1", 0.5)
    assert texts(busy.attributes) == {
        "hw.id": "n1/gpu3",
        "hw.name": "gpu3",
        "hw.gpu.task": "general",
        "host.name": "n1",
        "k8s.cluster.name": "c",
        "k8s.namespace.name": "team-a",
        "k8s.pod.name": "llm-0",
        "k8s.container.name": "main",
    }
    assert not found["hw.gpu.memory.usage"].sum.is_monotonic
    energy = found["hw.energy"]
    assert (energy.unit, energy.sum.is_monotonic) == ("J", True)
    (point,) = energy.sum.data_points
    assert texts(point.attributes) == {
        "hw.id": "n1/gpu3",
        "hw.name": "gpu3",
        "hw.type": "gpu",
        "host.name": "n1",
    }
    assert tally.sent == 7


def test_what_is_unknown_has_no_point_and_infinity_has_one():
    requests, _ = exported(("perfd_a", {}, math.nan), ("perfd_b", {}, math.inf))
    found = metrics(requests)
    assert set(found) == {"perfd_b"}
    assert found["perfd_b"].gauge.data_points[0].as_double == math.inf


def test_requests_are_bounded_and_name_the_resource():
    series = [("perfd_x", {"i": str(i)}, float(i)) for i in range(25)]
    requests, tally = exported(*series, max_points_per_request=10, resource_attributes={"site": "alps"})
    assert [len(metrics([one])["perfd_x"].gauge.data_points) for one in requests] == [10, 10, 5]
    assert tally.sent == 25
    for one in requests:
        attributes = texts(one.resource_metrics[0].resource.attributes)
        assert (attributes["service.name"], attributes["site"]) == ("perfd", "alps")


def test_points_wait_for_a_collector_that_is_away_and_are_lost_if_it_refuses_them():
    with Receiver() as receiver:
        given = context()
        tested = OtlpExporter(OtlpConfig(url=receiver.url, interval_s=1.0), given)
        receiver.answer = lambda _: Response(body=b"", status=503)
        given.clock.advance(100.0)
        now_s = given.clock.unix_ns() / 1e9
        tested.export(Round(time_unix_s=now_s, frames={"a": frame(now_s, 1.0)}))
        assert (given.tally.pending, given.tally.retries) == (1, 1)
        receiver.answer = lambda _: Response(body=b"")
        given.clock.advance(5.0)
        tested.export(Round(time_unix_s=now_s + 5.0, frames={"a": frame(now_s + 5.0, 1.0)}))
        assert (given.tally.sent, given.tally.pending) == (2, 0)
        receiver.answer = lambda _: Response(body=b"", status=400)
        given.clock.advance(5.0)
        tested.export(Round(time_unix_s=now_s + 10.0, frames={"a": frame(now_s + 10.0, 1.0)}))
        tested.close()
    assert (given.tally.sent, given.tally.lost) == (2, 1)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"url": "collector:4318"}, "not an http or https URL"),
        ({"url": "http://h", "interval_s": -1.0}, "interval_s"),
        ({"url": "http://h", "max_points_per_request": 0}, "max_points_per_request"),
    ],
)
def test_a_wrong_configuration_is_named(config, said):
    with pytest.raises(ConfigError, match=said):
        OtlpExporter(OtlpConfig(**config), context())


def test_it_runs_where_a_url_is_configured():
    with Receiver() as receiver:
        running = ExporterRegistry(ExportersConfig(otlp=OtlpConfig(url=receiver.url)), context().clock)
        assert [one.name for one in running.status()] == ["otlp"]
        running.close(5.0)
