"""Alerts delivered to real Alertmanagers, which are killed, replaced, and guarded by certificates."""

import os
import shutil
import subprocess
import time

import pytest
from exporters.support import Receiver, alert, real_context, until

from perfd.config import AlertmanagerConfig, HttpClientConfig
from perfd.exporters.alertmanager.alertmanager_exporter import AlertmanagerExporter
from perfd.exporters.exporter import Round
from tests.support.services import alertmanager

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not shutil.which("prometheus-alertmanager") and not os.environ.get("CI"),
        reason="Alertmanager is not installed (Debian package `prometheus-alertmanager`)",
    ),
]
QUICK = {"resend_s": 1.0, "backoff_initial_s": 0.1, "backoff_max_s": 0.2}


def configuration(receiver):
    return f"""
route:
  receiver: people
  group_by: [alertname, perfd_job]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1h
receivers:
  - name: people
    webhook_configs:
      - url: {receiver.url}
        send_resolved: true
"""


def notified(receiver):
    """What people were told, as (alert, state), in order and once each."""
    reported = [
        (one["labels"]["alertname"], one["status"]) for body in receiver.bodies for one in body["alerts"]
    ]
    return list(dict.fromkeys(reported))


class Embedded:
    """The engine's side: rounds follow each other until a condition holds."""

    def __init__(self, url, **config):
        self.given = real_context()
        self.exporter = AlertmanagerExporter(url, AlertmanagerConfig(**{**QUICK, **config}), self.given)
        self.firing = {}

    def fire(self, name, **labels):
        self.firing[name] = alert(name, fired=time.time(), **labels)
        self.round([self.firing[name]])

    def resolve(self, name):
        began = self.firing.pop(name)
        labels = {key: value for key, value in began.labels.items() if key != "alertname"}
        self.round([alert(name, fired=began.fired_at_unix_s, resolved=time.time(), **labels)])

    def round(self, changes=()):
        self.exporter.export(
            Round(time_unix_s=time.time(), changes=changes, firing=tuple(self.firing.values()))
        )

    def until(self, condition):
        return until(lambda: (self.round(), condition())[1])


def test_a_firing_alert_is_grouped_by_its_labels_and_its_end_is_reported(tmp_path):
    with Receiver() as receiver, alertmanager(tmp_path, configuration(receiver)) as server:
        embedded = Embedded(server.url)
        embedded.fire("PerfdStraggler", perfd_job="llm", rank="3")
        embedded.fire("PerfdStraggler2", perfd_job="other")
        embedded.until(lambda: len(server.get("/api/v2/alerts")) == 2)
        groups = {tuple(sorted(group["labels"].items())) for group in server.get("/api/v2/alerts/groups")}
        assert (("alertname", "PerfdStraggler"), ("perfd_job", "llm")) in groups
        embedded.resolve("PerfdStraggler")
        embedded.until(lambda: ("PerfdStraggler", "resolved") in notified(receiver))
        assert [one["labels"]["alertname"] for one in server.get("/api/v2/alerts")] == ["PerfdStraggler2"]
        assert embedded.given.tally.lost == 0
        embedded.exporter.close()


def test_nothing_is_lost_while_the_alertmanager_is_dead_even_if_it_comes_back_empty(tmp_path):
    with Receiver() as receiver, alertmanager(tmp_path, configuration(receiver)) as server:
        embedded = Embedded(server.url)
        embedded.fire("Before", perfd_job="llm")
        embedded.until(lambda: ("Before", "firing") in notified(receiver))
        server.kill()
        embedded.fire("Short", perfd_job="llm")
        embedded.resolve("Short")
        embedded.fire("Long", perfd_job="llm")
        embedded.until(lambda: embedded.given.tally.retries >= 2)
        assert embedded.given.tally.pending == 3
        shutil.rmtree(tmp_path / "alertmanager-data", ignore_errors=True)
        server.start()
        embedded.until(lambda: ("Short", "resolved") in notified(receiver))
        embedded.until(lambda: ("Long", "firing") in notified(receiver))
        assert notified(receiver).index(("Short", "firing")) < notified(receiver).index(("Short", "resolved"))
        names = {one["labels"]["alertname"] for one in server.get("/api/v2/alerts")}
        assert names == {"Before", "Long"}
        assert embedded.given.tally.lost == 0
        embedded.exporter.close()


def test_an_alert_that_goes_on_is_no_news_however_often_it_is_reported(tmp_path):
    with Receiver() as receiver, alertmanager(tmp_path, configuration(receiver)) as server:
        embedded = Embedded(server.url, resend_s=0.2)
        embedded.fire("Slow", perfd_job="llm")
        embedded.until(lambda: embedded.given.tally.sent >= 8)
        assert len(receiver.bodies) == 1
        embedded.exporter.close()


def test_certificates_of_both_sides_are_checked(tmp_path):
    for name in ("server", "client"):
        issue(tmp_path, name)
    web = f"""
tls_server_config:
  cert_file: {tmp_path}/server.pem
  key_file: {tmp_path}/server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: {tmp_path}/ca.pem
"""
    trusted = HttpClientConfig(ca=f"{tmp_path}/ca.pem")
    known = HttpClientConfig(
        ca=f"{tmp_path}/ca.pem", certificate=f"{tmp_path}/client.pem", key=f"{tmp_path}/client.key"
    )
    with (
        Receiver() as receiver,
        alertmanager(tmp_path, configuration(receiver), web_configuration=web) as server,
    ):
        for http, sent in ((HttpClientConfig(), 0), (trusted, 0), (known, 1)):
            embedded = Embedded(server.url, http=http)
            embedded.fire("Slow", perfd_job="llm")
            assert (embedded.given.tally.sent, embedded.given.tally.retries) == (sent, 1 - sent)
            embedded.exporter.close()
        until(lambda: ("Slow", "firing") in notified(receiver))


def test_a_password_is_asked_for_and_read_from_a_file(tmp_path):
    issue(tmp_path, "server")
    web = f"""
tls_server_config: {{cert_file: {tmp_path}/server.pem, key_file: {tmp_path}/server.key}}
basic_auth_users: {{perfd: {bcrypt("open sesame")}}}
"""
    (tmp_path / "right").write_text("open sesame\n")
    (tmp_path / "wrong").write_text("open barley\n")
    with (
        Receiver() as receiver,
        alertmanager(tmp_path, configuration(receiver), web_configuration=web) as server,
    ):
        for name, sent in (("wrong", 0), ("right", 1)):
            http = HttpClientConfig(
                ca=f"{tmp_path}/ca.pem", username="perfd", password_file=f"{tmp_path}/{name}"
            )
            embedded = Embedded(server.url, http=http)
            embedded.fire("Slow", perfd_job="llm")
            assert (embedded.given.tally.sent, embedded.given.tally.lost) == (sent, 1 - sent)
            embedded.exporter.close()
        until(lambda: ("Slow", "firing") in notified(receiver))


def bcrypt(password):
    """As Alertmanager keeps a password. Perl is on every Debian, and asks the C library."""
    program = "print crypt($ARGV[0], '$2y$04$' . 'a' x 22)"
    return subprocess.run(
        ["perl", "-e", program, password], check=True, capture_output=True, text=True
    ).stdout


def issue(folder, name):
    """A certificate for 127.0.0.1, signed by the authority in `folder` (made if it is not there)."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    if not (folder / "ca.pem").exists():
        openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
    openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
