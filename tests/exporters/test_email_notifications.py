"""Notifications by e-mail, to an SMTP server on loopback: TLS, logins, refusals, slow servers."""

import json
import socket
import ssl
import threading
from dataclasses import replace

import pytest
from exporters.rounds import job_round
from exporters.support import alert, context

from perfd.analysis.steps import StepBreakdown
from perfd.config import EmailReceiver, NotificationsConfig
from perfd.exporters.exporter import Round
from perfd.exporters.notifications import NotificationExporter
from perfd.report.render.finding_png import finding_picture
from tests.support.mail_server import MailServer
from tests.support.pki import Authority

AT_ONCE = NotificationsConfig(group_wait_s=0.0, group_interval_s=0.0, external_url="http://perfd.example")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    found = Authority(tmp_path_factory.mktemp("pki"))
    found.sign("server", names="IP:127.0.0.1")
    found.sign("other", names="DNS:elsewhere")
    return found


def server_tls(authority, name="server"):
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    found.load_cert_chain(authority.folder / f"{name}.pem", authority.folder / f"{name}.key")
    return found


def exporter(port, given=None, **options):
    settings = {
        "name": "team",
        "host": "127.0.0.1",
        "port": port,
        "security": "none",
        "sender": "perfd@example.com",
        "to": ["team@example.com"],
        **options,
    }
    return NotificationExporter(EmailReceiver(**settings), AT_ONCE, given or context())


def round_of(*alerts, time_s=100.0):
    return Round(time_unix_s=time_s, changes=alerts, firing=alerts)


def firing(job="llm", **labels):
    found = alert("Slow", perfd_job=job, severity="critical", **labels)
    return replace(found, annotations={"summary": f"Rank 5 of {job} is slow: größer"})


def test_a_mail_has_the_alert_and_the_link_and_all_mails_of_a_job_are_one_thread():
    with MailServer() as server:
        sending = exporter(server.port, to=["team@example.com", "b@example.com"])
        sending.export(round_of(firing()))
        sending.export(Round(time_unix_s=160.0, firing=[]))
        sending.close()
        first, second = server.mails
        assert server.envelopes[0].rcpt_tos == ["team@example.com", "b@example.com"]
    assert first["Subject"] == "[perfd] Alert: job llm: Rank 5 of llm is slow: größer"
    assert (first["From"], first["Auto-Submitted"]) == ("perfd@example.com", "auto-generated")
    text = first.get_content()
    assert text.splitlines()[0] == "CRITICAL: Rank 5 of llm is slow: größer"
    assert text.rstrip().endswith("Page: http://perfd.example/jobs/llm")
    assert second["Subject"].startswith("[perfd] Resolved: job llm")
    assert first["References"] == second["References"]
    assert first["Message-ID"] != second["Message-ID"]


def test_a_mail_about_a_known_job_has_the_picture_in_it():
    job = job_round(7, name="llm")
    summary = replace(job.summary, breakdown=StepBreakdown(forward_ratio=0.5, backward_ratio=0.4))
    with MailServer() as server:
        sending = exporter(server.port)
        sending.export(replace(round_of(firing()), jobs=[replace(job, summary=summary)]))
        sending.close()
        (mail,) = server.mails
    text, shown = mail.get_body(("plain",)), mail.get_body(("html",))
    assert text.get_content().startswith("CRITICAL: Rank 5 of llm is slow: größer")
    (picture,) = [part for part in mail.walk() if part.get_content_type() == "image/png"]
    assert picture.get_content() == finding_picture(summary).png
    assert picture.get_content_disposition() == "inline"
    assert f'src="cid:{picture["Content-ID"][1:-1]}"' in shown.get_content()
    assert "forward 50.0%, backward 40.0%" in shown.get_content()


def test_no_name_of_a_job_adds_a_header_or_an_address():
    bad = "llm\r\nBcc: evil@example.com\r\n\r\nbody\r\n.\r\nMAIL FROM:<evil@example.com>" + "x" * 10_000
    with MailServer() as server:
        sending = exporter(server.port)
        sending.export(round_of(firing(bad)))
        sending.close()
        [mail], [envelope] = server.mails, server.envelopes
    assert mail["Bcc"] is None
    assert (envelope.mail_from, envelope.rcpt_tos) == ("perfd@example.com", ["team@example.com"])
    assert mail["Subject"].startswith("[perfd] Alert: job llm Bcc: evil@example.com")


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_login_goes_over_tls_only(authority, tmp_path, security):
    (tmp_path / "password").write_text("open sesame\n")
    tls = {security: server_tls(authority)}
    with MailServer(**tls, login=("perfd", "open sesame")) as server:
        given = context()
        sending = exporter(
            server.port,
            given,
            security=security,
            ca=str(authority.folder / "ca.pem"),
            username="perfd",
            password_file=str(tmp_path / "password"),
        )
        sending.export(round_of(firing()))
        sending.close()
        assert len(server.mails) == 1
        assert server.logins == [(b"perfd", b"open sesame")]
    assert given.tally.sent == 1


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_server_whose_certificate_is_of_another_gets_nothing(authority, tmp_path, security):
    with MailServer(**{security: server_tls(authority, "other")}) as server:
        given = context()
        sending = exporter(server.port, given, security=security, ca=str(authority.folder / "ca.pem"))
        sending.export(round_of(firing()))
        assert (given.tally.retries, given.tally.pending) == (1, 1)
        assert server.envelopes == []


def test_a_server_without_starttls_gets_neither_mail_nor_password(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PERFD_TEST_PASSWORD", "hunter2")
    with MailServer() as server:
        given = context()
        sending = exporter(
            server.port, given, security="starttls", username="perfd", password_variable="PERFD_TEST_PASSWORD"
        )
        sending.export(round_of(firing()))
        assert server.logins == server.envelopes == []
    assert given.tally.retries == 1
    assert "STARTTLS" in json.dumps([vars(record) for record in caplog.records], default=str)


def test_a_wrong_password_is_in_no_log_and_a_new_one_counts(authority, tmp_path, caplog):
    (tmp_path / "password").write_text("hunter2\n")
    with MailServer(tls=server_tls(authority), login=("perfd", "right")) as server:
        given = context()
        sending = exporter(
            server.port,
            given,
            security="tls",
            ca=str(authority.folder / "ca.pem"),
            username="perfd",
            password_file=str(tmp_path / "password"),
        )
        sending.export(round_of(firing()))
        assert given.tally.retries == 1
        (tmp_path / "password").write_text("right\n")
        given.clock.advance(5.0)
        sending.export(Round(time_unix_s=105.0, firing=[firing()]))
        sending.close()
        assert len(server.mails) == 1
    said = json.dumps([vars(record) for record in caplog.records], default=str)
    [record] = [one for one in caplog.records if "cannot be reached" in one.message]
    assert record.answer.startswith("(535")
    assert "hunter2" not in said


@pytest.mark.parametrize(("answer", "retries", "lost"), [("451 later", 1, 0), ("554 spam", 0, 1)])
def test_a_refusal_for_now_is_retried_and_one_for_good_is_counted(answer, retries, lost, caplog):
    with MailServer() as server:
        server.answer = answer
        given = context()
        sending = exporter(server.port, given)
        sending.export(round_of(firing()))
        assert (given.tally.retries, given.tally.lost, given.tally.pending) == (retries, lost, retries)
        server.answer = "250 OK"
        given.clock.advance(5.0)
        sending.export(Round(time_unix_s=105.0, firing=[firing()]))
        assert len(server.mails) == retries
        sending.close()
    assert answer.split()[0] in json.dumps([vars(record) for record in caplog.records], default=str)


def test_an_address_that_is_refused_is_said_and_the_others_get_one_mail(caplog):
    with MailServer() as server:
        server.refused = {"gone@example.com"}
        given = context()
        sending = exporter(server.port, given, to=["gone@example.com", "team@example.com"])
        sending.export(round_of(firing()))
        sending.export(Round(time_unix_s=101.0, firing=[firing()]))
        sending.close()
        assert [one.rcpt_tos for one in server.envelopes] == [["team@example.com"]]
    assert given.tally.sent == 1
    assert "gone@example.com" in json.dumps([vars(record) for record in caplog.records], default=str)


@pytest.mark.parametrize("security", ["none", "tls", "starttls"])
def test_a_server_that_sends_a_byte_now_and_then_is_left_at_the_deadline(security):
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            connection, _ = server.accept()
            with connection:
                if security == "starttls":
                    connection.sendall(b"220 hello\r\n")
                while not stop.wait(0.05):
                    try:
                        connection.sendall(b"2")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        given = context()
        sending = exporter(server.getsockname()[1], given, security=security, timeout_s=0.5)
        sending.export(round_of(firing()))
        stop.set()
        thread.join()
    assert (given.tally.retries, given.tally.pending) == (1, 1)


def test_mails_wait_for_a_server_that_is_away(caplog):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    given = context()
    sending = exporter(port, given)
    for time_s in (100.0, 101.0, 102.0):
        sending.export(Round(time_unix_s=time_s, firing=[firing()]))
        given.clock.advance(100.0)
    assert (given.tally.retries, given.tally.pending) == (3, 1)
    assert len([one for one in caplog.records if "cannot be reached" in one.message]) == 1
