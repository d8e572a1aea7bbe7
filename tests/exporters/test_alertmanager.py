"""Alerts on their way to Alertmanagers: what is told when, and what becomes of them when one is away."""

import json
import socket
import threading
from dataclasses import replace

import pytest
from exporters.support import Receiver, alert, context, real_context, until

from perfd.clock import VirtualClock
from perfd.config import AlertmanagerConfig, ExportersConfig, HttpClientConfig
from perfd.errors import ConfigError
from perfd.exporters.alertmanager.alertmanager_exporter import AlertmanagerExporter
from perfd.exporters.alertmanager.delivery import AlertDelivery
from perfd.exporters.exporter import Round
from perfd.exporters.exporter_registry import ExporterRegistry
from perfd.net.http import Response


def reported(deliveries, now_s):
    """Send what is due; says of each alert whether it went as resolved."""
    due = deliveries.due(now_s)
    deliveries.mark_sent(due, now_s)
    return [one.as_resolved for one in due]


def test_an_alert_that_ended_while_the_alertmanager_was_away_is_reported_first_as_firing():
    deliveries = AlertDelivery(resend_s=60.0, max_alerts=10)
    deliveries.update([alert()], [alert()], 100.0)
    deliveries.update([alert(resolved=110.0)], [], 110.0)
    assert reported(deliveries, 200.0) == [False]
    assert reported(deliveries, 230.0) == []
    last = deliveries.due(260.0)
    assert [(one.as_resolved, one.ends_at_unix_s) for one in last] == [(True, 110.0)]


def test_one_that_waits_for_hours_is_sent_all_the_same():
    deliveries = AlertDelivery(resend_s=60.0, max_alerts=10)
    deliveries.update([alert(), alert(resolved=110.0)], [], 110.0)
    deliveries.update([], [], 50_000.0)
    assert reported(deliveries, 50_000.0) == [False]
    deliveries.update([], [], 50_060.0)
    assert reported(deliveries, 50_060.0) == [True]


def test_a_firing_alert_is_reported_again_and_its_end_at_once():
    deliveries = AlertDelivery(resend_s=60.0, max_alerts=10)
    deliveries.update([alert()], [alert()], 100.0)
    assert reported(deliveries, 100.0) == [False]
    assert reported(deliveries, 130.0) == []
    assert reported(deliveries, 160.0) == [False]
    deliveries.update([alert(resolved=165.0)], [], 165.0)
    assert reported(deliveries, 165.0) == [True]


def test_a_clock_that_was_set_back_keeps_nothing_from_being_reported():
    deliveries = AlertDelivery(resend_s=60.0, max_alerts=10)
    deliveries.update([alert()], [alert()], 5000.0)
    assert reported(deliveries, 5000.0) == [False]
    assert [reported(deliveries, now) for now in (1000.0, 1010.0, 1060.0)] == [[False], [], [False]]


def test_an_end_is_reported_for_a_quarter_of_an_hour_and_then_forgotten():
    deliveries = AlertDelivery(resend_s=60.0, max_alerts=10)
    deliveries.update([alert()], [alert()], 100.0)
    reported(deliveries, 100.0)
    deliveries.update([alert(resolved=110.0)], [], 110.0)
    times = [
        now for now in range(110, 3000, 10) if (deliveries.update([], [], now), reported(deliveries, now))[1]
    ]
    assert times == list(range(110, 1010, 60))


def test_an_alert_that_fires_anew_is_not_resolved_by_its_own_past():
    deliveries = AlertDelivery(resend_s=60.0, max_alerts=10)
    deliveries.update([alert()], [alert()], 100.0)
    reported(deliveries, 100.0)
    deliveries.update([alert(resolved=110.0)], [], 110.0)
    reported(deliveries, 110.0)
    again = alert(fired=120.0)
    deliveries.update([again], [again], 120.0)
    assert reported(deliveries, 120.0) == [False]
    assert [reported(deliveries, now) for now in (180.0, 240.0)] == [[False], [False]]


def test_an_alert_whose_rule_fails_ends():
    deliveries = AlertDelivery(resend_s=60.0, max_alerts=10)
    deliveries.update([alert()], [alert()], 100.0)
    reported(deliveries, 100.0)
    deliveries.update([], [], 110.0)
    [ended] = deliveries.due(110.0)
    assert (ended.as_resolved, ended.ends_at_unix_s) == (True, 110.0)


def test_ends_that_were_reported_make_room_and_what_finds_none_is_counted():
    deliveries = AlertDelivery(resend_s=60.0, max_alerts=2)
    first, second, third = (alert(name) for name in "abc")
    deliveries.update([first, second], [first, second], 100.0)
    reported(deliveries, 100.0)
    assert deliveries.update([third], [first, second, third], 101.0) == 1
    over = alert("a", resolved=102.0)
    deliveries.update([over], [second], 102.0)
    reported(deliveries, 102.0)
    assert deliveries.update([third], [second, third], 103.0) == 0
    assert [one.alert.name for one in deliveries.due(103.0)] == ["c"]


def test_alerts_wait_for_an_alertmanager_that_is_away_and_carry_external_labels():
    with Receiver() as receiver:
        receiver.answer = lambda _: Response(body=b"", status=503)
        given = context()
        config = AlertmanagerConfig(external_labels={"cluster": "c1"}, external_url="http://perfd.example/")
        exporter = AlertmanagerExporter(receiver.url, config, given)
        links = {"runbook_url": "/runbooks/Slow", "dashboard": "https://grafana.example/d/x"}
        firing = replace(alert(perfd_job="llm a"), annotations=links)
        exporter.export(Round(time_unix_s=100.0, changes=[firing], firing=[firing]))
        assert given.tally.pending == 1
        receiver.answer = lambda _: Response(body=b"")
        receiver.requests.clear()
        given.clock.advance(5.0)
        exporter.export(Round(time_unix_s=105.0, firing=[firing]))
        exporter.export(Round(time_unix_s=106.0, changes=[alert(perfd_job="llm a", resolved=106.0)]))
        exporter.close()
        [first], [second] = receiver.bodies
    assert first["labels"] == {"alertname": "Slow", "cluster": "c1", "perfd_job": "llm a"}
    assert first["annotations"] == {**links, "runbook_url": "http://perfd.example/runbooks/Slow"}
    assert first["generatorURL"] == "http://perfd.example/jobs/llm%20a"
    assert first["endsAt"] > second["endsAt"] == "1970-01-01T00:01:46.000+00:00"
    assert (given.tally.sent, given.tally.retries, given.tally.pending) == (2, 1, 0)


def test_what_is_refused_is_counted_and_not_reported_again_at_once():
    with Receiver() as receiver:
        receiver.answer = lambda _: Response(body=b"bad", status=400)
        given = context()
        exporter = AlertmanagerExporter(receiver.url, AlertmanagerConfig(), given)
        exporter.export(Round(time_unix_s=100.0, changes=[alert()], firing=[alert()]))
        exporter.export(Round(time_unix_s=101.0, firing=[alert()]))
        assert len(receiver.requests) == 1
        assert (given.tally.sent, given.tally.lost, given.tally.retries) == (0, 1, 0)
        exporter.close()


def test_an_alertmanager_that_came_back_receives_everything_at_once():
    with Receiver() as receiver:
        given = context()
        exporter = AlertmanagerExporter(receiver.url, AlertmanagerConfig(), given)
        exporter.export(Round(time_unix_s=100.0, changes=[alert("a")], firing=[alert("a")]))
        receiver.answer = lambda _: Response(body=b"", status=500)
        both = [alert("a"), alert("b", fired=101.0)]
        exporter.export(Round(time_unix_s=101.0, changes=both[1:], firing=both))
        receiver.answer = lambda _: Response(body=b"")
        given.clock.advance(5.0)
        exporter.export(Round(time_unix_s=106.0, firing=both))
        assert [one["labels"]["alertname"] for one in receiver.bodies[-1]] == ["a", "b"]
        exporter.close()


def test_one_that_never_answers_does_not_hold_up_another():
    with socket.create_server(("127.0.0.1", 0)) as mute, Receiver() as receiver:
        config = AlertmanagerConfig(
            urls=[f"http://127.0.0.1:{mute.getsockname()[1]}", receiver.url],
            http=HttpClientConfig(timeout_s=3.0),
        )
        exporters = ExporterRegistry(ExportersConfig(alertmanager=config), VirtualClock())
        exporters.offer(Round(time_unix_s=100.0, changes=[alert()], firing=[alert()]))
        until(lambda: receiver.requests)
        first, second = exporters.status()
        assert (first.name, first.sent) == ("alertmanager-0", 0)
        assert second.name == "alertmanager-1"
        exporters.close(30.0)


def test_a_new_token_counts_from_the_next_request_on(tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    config = AlertmanagerConfig(http=HttpClientConfig(bearer_token_file=str(token)))
    with Receiver() as receiver:
        given = context()
        exporter = AlertmanagerExporter(receiver.url, config, given)
        exporter.export(Round(time_unix_s=100.0, changes=[alert()], firing=[alert()]))
        token.unlink()
        exporter.export(Round(time_unix_s=160.0, firing=[alert()]))
        assert (given.tally.retries, given.tally.pending) == (1, 1)
        token.write_text("second\n")
        given.clock.advance(5.0)
        exporter.export(Round(time_unix_s=165.0, firing=[alert()]))
        exporter.close()
        sent = [request.headers["authorization"] for request in receiver.requests]
    assert sent == ["Bearer first", "Bearer second"]


def test_a_name_and_a_password_from_a_file_are_sent(tmp_path):
    (tmp_path / "password").write_text("open sesame\n")
    http = HttpClientConfig(username="perfd", password_file=str(tmp_path / "password"))
    with Receiver() as receiver:
        exporter = AlertmanagerExporter(receiver.url, AlertmanagerConfig(http=http), context())
        exporter.export(Round(time_unix_s=100.0, changes=[alert()], firing=[alert()]))
        exporter.close()
        assert receiver.requests[0].headers["authorization"] == "Basic cGVyZmQ6b3BlbiBzZXNhbWU="


@pytest.mark.parametrize(
    ("url", "config", "words"),
    [
        ("nowhere", AlertmanagerConfig(), "not an http"),
        ("http://h:99999", AlertmanagerConfig(), "port"),
        ("http://h", AlertmanagerConfig(resend_s=0.0), "resend_s"),
        ("http://h", AlertmanagerConfig(resend_s=float("nan")), "resend_s"),
        ("http://h", AlertmanagerConfig(max_alerts=0), "max_alerts"),
        ("http://h", AlertmanagerConfig(external_labels={"a-b": "x"}), "a-b"),
        ("http://h", AlertmanagerConfig(http=HttpClientConfig(username="u", bearer_token_file="t")), "both"),
        ("http://h", AlertmanagerConfig(http=HttpClientConfig(bearer_token_file="/no/such")), "/no/such"),
        ("http://h", AlertmanagerConfig(http=HttpClientConfig(headers={"A B": "x"})), "A B"),
        ("http://h", AlertmanagerConfig(http=HttpClientConfig(headers={"A": "x\r\nB: y"})), "header"),
        ("https://h", AlertmanagerConfig(http=HttpClientConfig(ca="/no/ca.pem")), "/no/ca.pem"),
        (
            "https://h",
            AlertmanagerConfig(http=HttpClientConfig(certificate="/no/c.pem")),
            "must be set together",
        ),
    ],
)
def test_a_mistake_in_the_configuration_is_reported_at_the_start(url, config, words):
    with pytest.raises(ConfigError, match=words):
        AlertmanagerExporter(url, config, context())


def test_a_kept_connection_that_died_is_opened_again_and_everything_is_reported():
    """As when an Alertmanager was started anew between two requests."""
    bodies = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = real_context()
        exporter = AlertmanagerExporter(
            f"http://127.0.0.1:{server.getsockname()[1]}", AlertmanagerConfig(), given
        )

        def serve():
            for requests in (1, 2):
                connection, _ = server.accept()
                with connection, connection.makefile("rb") as stream:
                    for _ in range(requests):
                        length = 0
                        while (line := stream.readline()) not in {b"\r\n", b""}:
                            if line.lower().startswith(b"content-length:"):
                                length = int(line.split(b":")[1])
                        bodies.append(json.loads(stream.read(length)))
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        first, second = alert("a"), alert("b", fired=101.0)
        exporter.export(Round(time_unix_s=100.0, changes=[first], firing=[first]))
        exporter.export(Round(time_unix_s=101.0, changes=[second], firing=[first, second]))
        thread.join()
        exporter.close()
    assert [[one["labels"]["alertname"] for one in body] for body in bodies] == [["a"], ["b"], ["a"]]
    assert given.tally.retries == 0
