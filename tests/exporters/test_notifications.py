"""Notifications by webhook: what they say, and what happens when a receiver is away or refuses them."""

import json
import re
import socket
from dataclasses import replace

import pytest
from exporters.rounds import job_round
from exporters.support import Receiver, alert, context, real_context, until
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.steps import StepBreakdown
from perfd.clock import VirtualClock
from perfd.config import (
    EmailReceiver,
    ExportersConfig,
    HttpClientConfig,
    NotificationsConfig,
    WebhookReceiver,
)
from perfd.errors import ConfigError
from perfd.exporters.exporter import Round
from perfd.exporters.exporter_registry import ExporterRegistry
from perfd.exporters.notifications import NotificationExporter
from perfd.exporters.notifications.email_sender import email_of
from perfd.exporters.notifications.notification_groups import AlertGroup, Notification
from perfd.exporters.notifications.notification_sender import OutgoingMessage
from perfd.exporters.notifications.notification_text import MOST_ALERTS, body, document, slack, title
from perfd.net.http import Response

AT_ONCE = NotificationsConfig(group_wait_s=0.0, group_interval_s=0.0, external_url="http://perfd.example/")
SECRET_PATH = "/take/T000/B000/xyzzy"


def webhook(url, given=None, config=AT_ONCE, **options):
    return NotificationExporter(
        WebhookReceiver(name="oncall", url=url, **options), config, given or context()
    )


def firing(name="Slow", *, severity="warning", **labels):
    found = alert(name, perfd_job="llm a", severity=severity, **labels)
    notes = {"summary": "Rank 5 is slow", "description": "Look at it.", "runbook_url": "/runbooks/Slow"}
    return replace(found, annotations=notes, first_step=7)


def round_of(*alerts, time_s=100.0, jobs=()):
    return Round(time_unix_s=time_s, changes=alerts, firing=[one for one in alerts if one.firing], jobs=jobs)


def notification(*alerts, known=()):
    return Notification(group=AlertGroup.of(alerts[0]), new=alerts, known=known, previous_unix_s=None)


def outgoing(given, summary=None, url="http://p"):
    return OutgoingMessage(notification=given, summary=summary, external_url=url, time_unix_s=1.0)


def test_a_message_has_the_alerts_the_findings_of_the_job_and_links():
    job = job_round(7, name="llm a")
    with Receiver() as receiver:
        exporter = webhook(receiver.url)
        exporter.export(round_of(firing(), firing("Hot", severity="critical"), jobs=[job]))
        exporter.close()
        [message] = receiver.bodies
    assert (message["schema"], message["receiver"]) == ("perfd.notification/1", "oncall")
    assert (message["status"], message["repeated"], message["job"]) == ("firing", False, "llm a")
    assert message["title"] == "2 alerts: job llm a: Rank 5 is slow"
    assert message["url"] == "http://perfd.example/jobs/llm%20a"
    # Of a job without timers and costs there is nothing to draw.
    assert message["picture_url"] is None
    assert [(one["name"], one["new"], one["state"]) for one in message["alerts"]] == [
        ("Hot", True, "firing"),
        ("Slow", True, "firing"),
    ]
    assert message["alerts"][1]["annotations"]["runbook_url"] == "http://perfd.example/runbooks/Slow"
    found = job.summary.bottleneck
    assert message["findings"][0]["kind"] == found.kind
    lines = message["text"].splitlines()
    assert lines[:4] == [
        "CRITICAL: Rank 5 is slow",
        "Look at it.",
        "Since 1970-01-01 00:01:40 UTC, step 7.",
        "Runbook: http://perfd.example/runbooks/Slow",
    ]
    assert f"What limits the job: {found.headline}." in lines
    assert {f"- {sentence}" for sentence in found.evidence[:5]} <= set(lines)
    assert lines[-1] == "Page: http://perfd.example/jobs/llm%20a"


def test_slack_gets_a_text_in_which_no_name_makes_links_or_calls_people():
    with Receiver() as receiver:
        exporter = webhook(receiver.url, format="slack")
        bad = alert("Slow", perfd_job="<!channel> @all [x](http://evil.example) & \r\n*b*")
        exporter.export(round_of(bad))
        exporter.close()
        [message] = receiver.bodies
    assert message.keys() == {"text"}
    first, *_ = message["text"].splitlines()
    assert "&lt;!channel&gt;" in first
    assert "&amp;" in first
    assert "@all" not in message["text"]
    assert "](" not in message["text"]


def test_slack_gets_the_address_of_the_picture():
    job = job_round(7, name="llm a")
    summary = replace(job.summary, breakdown=StepBreakdown(forward_ratio=0.5, backward_ratio=0.4))
    with Receiver() as receiver:
        exporter = webhook(receiver.url, format="slack")
        exporter.export(round_of(firing(), jobs=[replace(job, summary=summary)]))
        exporter.close()
        [message] = receiver.bodies
    [attached] = message["attachments"]
    assert attached["image_url"] == "http://perfd.example/reports/pictures/llm%20a.png"
    assert attached["fallback"] == attached["text"]
    assert "forward 50.0%, backward 40.0%" in attached["text"]
    assert "attachments" not in slack(outgoing(notification(firing()), summary, None))
    sent = document(outgoing(notification(firing()), summary), receiver="r")
    assert sent["picture_url"] == "http://p/reports/pictures/llm%20a.png"


def test_the_end_and_a_repeat_say_so():
    resolved = replace(firing(), state=alert(resolved=160.0).state, resolved_at_unix_s=160.0)
    assert title(notification(resolved)) == "Resolved: job llm a: Rank 5 is slow"
    assert "from 1970-01-01 00:01:40 UTC to 1970-01-01 00:02:40 UTC" in body(outgoing(notification(resolved)))
    again = Notification(group=AlertGroup.of(firing()), new=(), known=(firing(),), previous_unix_s=1.0)
    assert title(again) == "Still firing: job llm a: Rank 5 is slow"
    server = notification(alert("Queue", node="n0", server="vllm"))
    assert title(server) == "Alert: server n0/vllm: Queue"
    assert body(outgoing(server, url="http://p/")).splitlines()[-1] == "Page: http://p/servers"


def test_a_message_is_retried_under_one_id_and_a_repeat_has_another():
    with Receiver() as receiver:
        given, config = context(), NotificationsConfig(group_wait_s=0.0, repeat_interval_s=60.0)
        exporter = webhook(receiver.url, given, config)
        receiver.answer = lambda _: Response(body=b"", status=500)
        exporter.export(round_of(firing()))
        exporter.export(Round(time_unix_s=100.5, firing=[firing()]))
        assert len(receiver.requests) == 1
        assert (given.tally.pending, given.tally.retries) == (1, 1)
        receiver.answer = lambda _: Response(body=b"")
        given.clock.advance(5.0)
        exporter.export(Round(time_unix_s=105.0, firing=[firing()]))
        exporter.export(Round(time_unix_s=165.0, firing=[firing()]))
        exporter.close()
        failed, retried, repeated = receiver.bodies
    assert failed["id"] == retried["id"] != repeated["id"]
    assert repeated["repeated"]
    assert (given.tally.sent, given.tally.pending, given.tally.lost) == (2, 0, 0)


def test_what_is_refused_is_counted_said_once_and_not_sent_at_once_again(caplog):
    with Receiver() as receiver:
        receiver.answer = lambda _: Response(body=b"channel_not_found", status=404)
        given = context()
        exporter = webhook(receiver.url, given)
        exporter.export(round_of(firing()))
        exporter.export(Round(time_unix_s=101.0, firing=[firing()]))
        other = replace(firing(), labels={**firing().labels, "perfd_job": "b"})
        exporter.export(Round(time_unix_s=102.0, changes=[other], firing=[firing(), other]))
        exporter.close()
        assert len(receiver.requests) == 2
    assert (given.tally.lost, given.tally.sent, given.tally.pending) == (2, 0, 0)
    [record] = [one for one in caplog.records if "refuses" in one.message]
    assert (record.receiver, record.answer) == ("oncall", "404: channel_not_found")


def test_a_message_that_breaks_the_receiver_does_not_keep_others_from_it():
    with Receiver() as receiver:
        receiver.answer = lambda request: Response(body=b"", status=500 if b'"bad"' in request.body else 200)
        given = context()
        exporter = webhook(receiver.url, given)
        alerts = [alert("A", perfd_job=job) for job in ("bad", "good", "fine")]
        exporter.export(round_of(*alerts))
        for _ in range(4):
            given.clock.advance(100.0)
            exporter.export(Round(time_unix_s=101.0, firing=alerts))
        exporter.close()
        sent = [message["job"] for message in receiver.bodies]
    assert sent.count("good") == sent.count("fine") == 1
    assert given.tally.pending == 1


def test_one_that_never_answers_does_not_hold_up_another():
    with socket.create_server(("127.0.0.1", 0)) as mute, Receiver() as receiver:
        slow = WebhookReceiver(
            name="mute",
            url=f"http://127.0.0.1:{mute.getsockname()[1]}",
            http=HttpClientConfig(timeout_s=3.0),
        )
        config = NotificationsConfig(
            group_wait_s=0.0, webhooks=[slow, WebhookReceiver(name="well", url=receiver.url)]
        )
        exporters = ExporterRegistry(ExportersConfig(notifications=config), VirtualClock())
        exporters.offer(round_of(firing()))
        until(lambda: receiver.requests)
        assert [one.name for one in exporters.status()] == ["notifications-mute", "notifications-well"]
        assert exporters.status()[0].sent == 0
        exporters.close(30.0)


def test_a_secret_url_is_in_no_log_and_is_read_again(tmp_path, caplog, monkeypatch):
    with Receiver() as receiver:
        secret = receiver.url.removesuffix("/take") + SECRET_PATH
        (tmp_path / "url").write_text(secret + "\n")
        given = context()
        exporter = webhook(None, given, url_file=str(tmp_path / "url"))
        receiver.answer = lambda request: Response(body=f"no {request.path} here".encode(), status=403)
        exporter.export(round_of(firing()))
        (tmp_path / "url").write_text("xyzzy is no URL\n")
        given.clock.advance(5.0)
        exporter.export(Round(time_unix_s=105.0, firing=[firing()]))
        receiver.answer = lambda _: Response(body=b"")
        (tmp_path / "url").unlink()
        given.clock.advance(5.0)
        exporter.export(Round(time_unix_s=110.0, firing=[firing()]))
        assert given.tally.retries == 3
        (tmp_path / "url").write_text(secret + "\n")
        given.clock.advance(10.0)
        exporter.export(Round(time_unix_s=120.0, firing=[firing()]))
        exporter.close()
    assert given.tally.sent == 1
    assert "cannot be reached" in caplog.text
    said = [json.dumps(vars(record), default=str) for record in caplog.records]
    assert not any("xyzzy" in one for one in said)
    monkeypatch.setenv("PERFD_TEST_URL", "xyzzy://h")
    with pytest.raises(ConfigError) as raised:
        webhook(None, url_variable="PERFD_TEST_URL")
    assert "xyzzy" not in str(raised.value)


def test_what_waits_at_the_end_is_sent_where_no_history_keeps_it():
    with Receiver() as receiver:
        given = real_context()
        exporter = webhook(receiver.url, given, NotificationsConfig())
        exporter.export(round_of(firing()))
        assert receiver.requests == []
        exporter.close()
        assert len(receiver.bodies) == 1
    assert given.tally.pending == 0


def test_many_alerts_are_cut_and_counted():
    alerts = [alert(f"A{number}", perfd_job="llm") for number in range(300)]
    found = document(outgoing(notification(*alerts)), receiver="r")
    assert (len(found["alerts"]), found["alerts_left_out"]) == (MOST_ALERTS, 300 - MOST_ALERTS)
    assert f"{300 - MOST_ALERTS} more alerts are left out." in found["text"]


NAMES = st.one_of(
    st.text(max_size=300),
    st.sampled_from(
        [
            "x" * 10_000,
            "a\r\nBcc: evil@example.com",
            "a\n\n<html>",
            "\u202egnp.exe",
            "\x00\x1b[2J",
            "=?utf-8?q?x?=",
        ]
    ),
)


@given(NAMES, NAMES, NAMES)
def test_no_name_adds_a_header_or_a_line_or_makes_a_message_large(job, name, text):
    one = replace(
        alert(name, perfd_job=job, severity=text), annotations={"summary": text, "description": text}
    )
    found = notification(one)
    assert title(found).isprintable()
    assert len(title(found)) <= 200
    assert len(body(outgoing(found, url=None)).splitlines()) <= 4
    assert len(slack(outgoing(found))["text"]) < 25_000
    made = document(outgoing(found), receiver="r")
    assert len(json.dumps(made)) < 150_000
    mail = email_of(
        outgoing(found, url=None),
        sender="perfd@example.com",
        to=["a@example.com"],
    )
    head, _, _ = mail.as_bytes().partition(b"\r\n\r\n")
    unfolded = re.sub(rb"\r\n[ \t]", b"", head).decode("ascii").split("\r\n")
    assert sorted(line.partition(":")[0] for line in unfolded) == [
        "Auto-Submitted",
        "Content-Transfer-Encoding",
        "Content-Type",
        "Date",
        "From",
        "MIME-Version",
        "Message-ID",
        "References",
        "Subject",
        "To",
    ]


def receiver_of(**options):
    return NotificationsConfig(webhooks=[WebhookReceiver(**{"name": "a", "url": "http://h", **options})])


def email_receiver(**options):
    given = {"name": "a", "host": "h", "sender": "p@example.com", "to": ["a@example.com"], **options}
    return NotificationsConfig(emails=[EmailReceiver(**given)])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (receiver_of(url=None), "set one of"),
        (receiver_of(url_file="/no/such"), "set one of"),
        (receiver_of(url=None, url_file="/no/such"), "/no/such"),
        (receiver_of(url=None, url_file="a", url_variable="B"), "not both"),
        (receiver_of(url=None, url_variable="PERFD_NOT_SET"), "PERFD_NOT_SET"),
        (receiver_of(url="ftp://h"), "not an http"),
        (receiver_of(url="http://user:hunter2@h"), "password_file"),
        (receiver_of(url="http://[::"), "not an http"),
        (receiver_of(name="a b"), "letters"),
        (receiver_of(http=HttpClientConfig(bearer_token_file="/no/such")), "/no/such"),
        (NotificationsConfig(webhooks=receiver_of().webhooks * 2), "two receivers"),
        (NotificationsConfig(group_wait_s=-1.0), "group_wait_s"),
        (NotificationsConfig(repeat_interval_s=0.0), "repeat_interval_s"),
        (NotificationsConfig(group_interval_s=float("nan")), "group_interval_s"),
        (NotificationsConfig(max_alerts=0), "max_alerts"),
        (NotificationsConfig(external_url="perfd.example"), "external_url"),
        (email_receiver(host=""), "host"),
        (email_receiver(port=0), "port"),
        (email_receiver(to=[]), "to"),
        (email_receiver(to=["a@example.com\r\nBcc: b@example.com"]), "not an e-mail"),
        (email_receiver(to=["Ann <a@example.com>"]), "not an e-mail"),
        (email_receiver(sender="nobody"), "not an e-mail"),
        (email_receiver(username="u"), "password_file"),
        (email_receiver(password_variable="P"), "username"),
        (email_receiver(username="u", password_file="/no/such"), "/no/such"),
        (email_receiver(username="u", password_file="/x", security="none"), "starttls"),
        (email_receiver(ca="/no/ca.pem"), "/no/ca.pem"),
        (email_receiver(timeout_s=0.0), "timeout_s"),
    ],
)
def test_a_mistake_in_the_configuration_is_reported_at_the_start(config, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as raised:
        ExporterRegistry(ExportersConfig(notifications=config), VirtualClock())
    assert "hunter2" not in str(raised.value)
