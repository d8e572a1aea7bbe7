"""Alertmanager's webhooks: who may send them, what starts a capture, and what is said of the rest."""

import http.client
import json

import pytest
from aggregator.support import START_S, aggregator, place, step, values
from exporters.support import until
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.aggregator.alerts.alertmanager_webhook import read_webhook
from perfd.clock import VirtualClock
from perfd.config import CaptureProfile, HistoryConfig, WebhookConfig
from perfd.errors import ConfigError, PerfdError
from perfd.model import CaptureRequest, CaptureState, CaptureStatus, CaptureTool
from perfd.net.http import MAX_BODY_BYTES
from tests.support.examples import examples
from tests.support.fake_agent import FakeAgent

PATH = "/api/v1/webhooks/alertmanager"
FIRED = "2023-11-14T22:13:20.123456789Z"
TOKEN = "swordfish"


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


def running(token, **config):
    webhook = WebhookConfig(token_file=str(token) if token else None)
    return aggregator(http_listen="127.0.0.1:0", webhook=webhook, **config)


def alert(name="PerfdPipelineStall", *, status="firing", starts_at=FIRED, **labels):
    labels = {"alertname": name, "perfd_job": "llm", "capture": "default", **labels}
    return {
        "status": status,
        "labels": {key: value for key, value in labels.items() if value is not None},
        "annotations": {},
        "startsAt": starts_at,
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": "0",
    }


def webhook(*alerts):
    return {"version": "4", "groupKey": "{}", "truncatedAlerts": 0, "status": "firing", "alerts": alerts}


def post(server, body, *, token=TOKEN, method="POST", headers=None):
    """The status and document that a request is answered with."""
    host, port = server.http_address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    sent = {"Authorization": f"Bearer {token}"} if token is not None else {}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(method, PATH, data if method == "POST" else None, {**sent, **(headers or {})})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def as_json(value):
    return json.dumps(value).encode()


def outcomes(answer):
    status, document = answer
    assert (status, document["schema"]) == (200, "perfd.webhook/1")
    return [one["outcome"] for one in document["alerts"]]


def begin(server, agent_id="agent0"):
    """An agent whose node runs rank 0 of a job."""
    agent = FakeAgent(server.grpc_address, agent_id=agent_id)
    agent.__enter__()
    agent.hello(tools=[CaptureTool.NSYS])
    agent.send(place(0, 0), step(1, time_s=START_S))
    return agent


def test_a_firing_alert_with_a_capture_label_starts_a_capture(token):
    with running(token) as server:
        agent = begin(server)
        [entry] = post(server, webhook(alert()))[1]["alerts"]
        request = agent.receive()
        assert isinstance(request, CaptureRequest)
        assert (request.capture_id, request.alert) == (entry["capture"], "PerfdPipelineStall")
        [capture] = server.captures()
        assert (capture["job"], capture["alert"], capture["state"]) == ("llm", "PerfdPipelineStall", "open")
        agent.__exit__()


def test_each_alert_has_its_outcome_and_all_are_counted(token):
    with running(token) as server:
        agent = begin(server)
        answer = post(
            server,
            webhook(
                alert("Ended", status="resolved"),
                alert("NoCapture", capture=None),
                alert("Elsewhere", perfd_job="other"),
                alert("Wrong", capture="no-such-profile"),
                alert("Right"),
                alert("Busy"),
            ),
        )
        assert outcomes(answer) == ["resolved", "no_capture", "unknown_job", "refused", "started", "refused"]
        reasons = [one["reason"] for one in answer[1]["alerts"]]
        assert "There is no job 'other'" in reasons[2]
        assert "no-such-profile" in reasons[3]
        assert "still running" in reasons[5]
        server.tick()
        page = values(server.page())
        assert page['perfd_webhook_alerts_total{outcome="refused"}'] == 2
        assert page['perfd_webhook_requests_total{outcome="accepted"}'] == 1
        agent.__exit__()


def test_a_repeated_webhook_starts_nothing_and_a_new_firing_does(token):
    profile = {"default": CaptureProfile(cooldown_s=0.0)}
    with running(token, capture_profiles=profile) as server:
        agent = begin(server)
        assert outcomes(post(server, webhook(alert()))) == ["started"]
        first = agent.receive().capture_id
        agent.say(CaptureStatus(capture_id=first, state=CaptureState.DONE, time_unix_ns=0, ranks=(0,)))
        until(lambda: server.captures()[0]["state"] == "done")
        again = post(server, webhook(alert(cluster="added by a server")))
        assert outcomes(again) == ["repeated"]
        assert again[1]["alerts"][0]["capture"] == first
        later = "2023-11-14T23:13:20Z"
        assert outcomes(post(server, webhook(alert(starts_at=later)))) == ["started"]
        assert outcomes(post(server, webhook(alert(starts_at=later)))) == ["repeated"]
        assert len(server.captures()) == 2
        agent.__exit__()


def test_an_alert_that_was_reported_during_a_capture_captures_when_it_is_reported_again(token):
    clock = VirtualClock(round(START_S * 1e9))
    with running(token, clock=clock) as server:
        agent = begin(server)
        assert outcomes(post(server, webhook(alert("First"), alert("Second")))) == ["started", "refused"]
        assert outcomes(post(server, webhook(alert("Second")))) == ["repeated"]
        first = agent.receive().capture_id
        agent.say(CaptureStatus(capture_id=first, state=CaptureState.DONE, time_unix_ns=0, ranks=(0,)))
        until(lambda: server.captures()[0]["state"] == "done")
        assert outcomes(post(server, webhook(alert("Second")))) == ["repeated"]
        clock.advance(10.0)
        assert outcomes(post(server, webhook(alert("First"), alert("Second")))) == ["repeated", "started"]
        agent.__exit__()


def test_a_firing_is_remembered_over_a_restart(token, tmp_path):
    history = HistoryConfig(path=str(tmp_path / "history.sqlite"))
    clock = VirtualClock(round(START_S * 1e9))
    with running(token, clock=clock, history=history) as server:
        agent = begin(server)
        assert outcomes(post(server, webhook(alert()))) == ["started"]
        agent.__exit__()
    clock.advance(3600.0 * 5)
    with running(token, clock=clock, history=history) as server:
        agent = begin(server, "agent1")
        assert outcomes(post(server, webhook(alert()))) == ["repeated"]
        agent.__exit__()


def test_an_alert_without_a_job_is_of_the_only_one_there_is(token):
    with running(token) as server:
        agent = begin(server)
        assert outcomes(post(server, webhook(alert(perfd_job=None)))) == ["started"]
        agent.send(step(1, job="second"))
        answer = post(server, webhook(alert("Other", perfd_job=None)))
        assert outcomes(answer) == ["unknown_job"]
        assert "not just one job" in answer[1]["alerts"][0]["reason"]
        agent.__exit__()


def test_the_job_of_the_scrape_is_not_the_one_an_alert_is_about(token):
    with running(token) as server:
        agent = begin(server)
        agent.send(step(1, job="perfd"))
        assert outcomes(post(server, webhook(alert(job="perfd")))) == ["started"]
        assert [capture["job"] for capture in server.captures()] == ["llm"]
        agent.__exit__()


@pytest.mark.parametrize("headers", [{"Authorization": "Basic c3dvcmRmaXNo"}, {"Authorization": "swordfish"}])
def test_another_scheme_is_no_bearer_token(token, headers):
    with running(token) as server:
        assert post(server, webhook(), token=None, headers=headers)[0] == 401


@pytest.mark.parametrize("wrong", [None, "", "sword", "swordfish2", "Swordfish", "sw\u00f6rdfish"])
def test_a_wrong_token_changes_nothing_and_is_counted(token, wrong):
    with running(token) as server:
        agent = begin(server)
        assert post(server, webhook(alert()), token=wrong)[0] == 401
        assert server.captures() == []
        server.tick()
        assert values(server.page())['perfd_webhook_requests_total{outcome="unauthorized"}'] == 1
        agent.__exit__()


def test_a_new_token_counts_at_once_and_one_that_is_gone_closes_the_door(token):
    with running(token) as server:
        token.write_text("other\n")
        assert post(server, webhook())[0] == 401
        assert post(server, webhook(), token="other")[0] == 200
        token.unlink()
        assert post(server, webhook(), token="other")[0] == 503


def test_without_a_token_file_there_is_no_receiver():
    with running(None) as server:
        status, document = post(server, webhook(alert()))
        assert status == 404
        assert "webhook.token_file" in document["error"]


def test_only_post_is_taken(token):
    with running(token) as server:
        assert post(server, b"", method="GET")[0] == 405


@pytest.mark.parametrize("content", ["", "two words", "two\nlines"])
def test_a_token_file_that_holds_none_is_reported_at_the_start(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"webhook\.token_file"), running(path):
        pass


def test_a_body_that_is_too_large_is_refused_before_it_is_read(token):
    with running(token) as server:
        status, document = post(server, b" " * (4 * MAX_BODY_BYTES))
        assert status == 413
        assert str(MAX_BODY_BYTES) in document["error"]
        assert post(server, webhook())[0] == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not the webhook"),
        (b"{", "not the webhook"),
        (b"[]", "not the webhook"),
        (b"\xff", "not the webhook"),
        (json.dumps({"version": "3", "alerts": []}).encode(), "version '3'"),
        (json.dumps(webhook({"status": "firing"})).encode(), "labels"),
        (json.dumps(webhook(alert(starts_at="yesterday"))).encode(), "startsAt"),
        (json.dumps(webhook(alert(rank=3))).encode(), "labels"),
        (b"[" * 100_000, "not the webhook"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_reason(token, body, words):
    with running(token) as server:
        status, document = post(server, body)
        assert status == 400
        assert words in document["error"]
        server.tick()
        assert values(server.page())['perfd_webhook_requests_total{outcome="malformed"}'] == 1


@given(st.binary(max_size=200) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(as_json))
@settings(max_examples=examples(200))
def test_garbage_never_raises_anything_else(body):
    with pytest.raises(PerfdError, match="webhook"):
        read_webhook(body)
