"""Who may start and cancel captures over HTTP."""

import http.client
import json
import socket

import pytest
from aggregator.support import START_S, aggregator, place, step
from exporters.support import until

from perfd.aggregator.aggregator import Aggregator
from perfd.cli import main
from perfd.cli.aggregator_client import authorization_of
from perfd.config import AggregatorConfig
from perfd.errors import ConfigError, PerfdError
from perfd.model import CaptureTool
from tests.support.fake_agent import FakeAgent

CHANGING = ["/api/v1/captures", "/api/v1/captures/c1/cancel"]
EVERYWHERE = "0.0.0.0:0"
TOKEN = "swordfish"


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


def port_of(server):
    return int(server.http_address.rsplit(":", 1)[1])


def ask(server, path, *, method="POST", body=b'{"job": "none"}', **headers):
    """The status and document of an answer; `Host_` and the like name headers."""
    sent = {"Content-Type": "application/json"} | {
        name.strip("_").replace("_", "-"): value for name, value in headers.items()
    }
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=30)
    try:
        connection.request(
            method, path, body if method == "POST" else None, {k: v for k, v in sent.items() if v is not None}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("path", CHANGING)
def test_without_a_token_nobody_changes_anything_where_others_can_reach_it(path):
    with aggregator(http_listen=EVERYWHERE, allow_plaintext=True) as server:
        status, document = ask(server, path)
        assert status == 403
        assert "http_token_file" in document["error"]
        assert ask(server, "/api/v1/captures", method="GET")[0] == 200


@pytest.mark.parametrize("listen", ["127.0.0.1:0", EVERYWHERE])
@pytest.mark.parametrize("path", CHANGING)
def test_with_a_token_only_who_shows_it_changes_something(token, listen, path):
    with aggregator(http_listen=listen, allow_plaintext=True, http_token_file=str(token)) as server:
        for wrong in (None, "Bearer", "Bearer sword", "Basic swordfish", "Bearer sw\u00f6rdfish"):
            assert ask(server, path, Authorization=wrong)[0] == 401
        status, document = ask(server, path, Authorization=f"Bearer {TOKEN}", Host="perfd.example:9460")
        # The request is understood now, and there is neither such a job nor such a capture.
        assert status == 400
        assert "There is no" in document["error"] or "unknown field" in document["error"]


def test_a_new_token_counts_at_once_and_one_that_is_gone_closes_the_door(token):
    with aggregator(http_listen="127.0.0.1:0", http_token_file=str(token)) as server:
        token.write_text("other")
        assert ask(server, CHANGING[0], Authorization=f"Bearer {TOKEN}")[0] == 401
        assert ask(server, CHANGING[0], Authorization="Bearer other")[0] == 400
        token.unlink()
        assert ask(server, CHANGING[0], Authorization="Bearer other")[0] == 503


def test_a_token_file_that_holds_none_is_reported_at_the_start(tmp_path):
    with (
        pytest.raises(ConfigError, match="http_token_file: cannot read"),
        aggregator(http_token_file=str(tmp_path / "none")),
    ):
        pass


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 400),
        ("localhost:{port}", 400),
        ("[::1]:{port}", 400),
        ("evil.example:{port}", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("[", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("with_origin", [False, True])
def test_on_loopback_a_site_that_names_itself_like_this_machine_changes_nothing(host, status, with_origin):
    with aggregator(http_listen="127.0.0.1:0") as server:
        named = host.format(port=port_of(server))
        # What a browser sends after DNS rebinding: the site's name both as the host and as the origin.
        origin = {"Origin": f"http://{named}"} if with_origin else {}
        assert ask(server, CHANGING[0], Host=named, **origin)[0] == status


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
def test_what_a_form_can_send_without_leave_is_not_taken(kind):
    with aggregator(http_listen="127.0.0.1:0") as server:
        assert ask(server, CHANGING[0], Content_Type=kind)[0] == 415
        assert ask(server, CHANGING[0], Content_Type="Application/JSON; charset=utf-8")[0] == 400


def test_perfd_capture_shows_the_token_of_a_file(token, capsys, monkeypatch):
    monkeypatch.delenv("PERFD_TOKEN_FILE", raising=False)
    with (
        aggregator(http_listen="127.0.0.1:0", http_token_file=str(token)) as server,
        FakeAgent(server.grpc_address) as agent,
    ):
        agent.hello(tools=[CaptureTool.NSYS])
        agent.send(place(0, 0), step(1, time_s=START_S))
        until(server.jobs)
        where = ["--aggregator", server.http_address]
        assert main(["capture", "start", "llm", "--id", "c1", *where]) == 2
        assert "--token-file" in capsys.readouterr().err
        assert main(["capture", "start", "llm", "--id", "c1", *where, "--token-file", str(token)]) == 0
        monkeypatch.setenv("PERFD_TOKEN_FILE", str(token))
        assert main(["capture", "cancel", "c1", *where]) == 0
        assert server.captures()[0]["id"] == "c1"


def test_a_token_file_of_the_client_that_holds_none_is_one_sentence(tmp_path):
    class Arguments:
        token_file = None

    assert authorization_of(Arguments, {}) == {}
    with pytest.raises(PerfdError, match="Cannot read the token"):
        authorization_of(Arguments, {"PERFD_TOKEN_FILE": str(tmp_path)})
    Arguments.token_file = tmp_path / "two"
    Arguments.token_file.write_text("two words")
    with pytest.raises(PerfdError, match="must contain one word"):
        authorization_of(Arguments, {})
    Arguments.token_file.write_text("one\n")
    assert authorization_of(Arguments, {}) == {"Authorization": "Bearer one"}


def test_a_request_without_a_host_changes_nothing():
    lines = [
        "POST /api/v1/captures HTTP/1.0",
        "Content-Type: application/json",
        "Content-Length: 2",
        "",
        "{}",
    ]
    with (
        aggregator(http_listen="127.0.0.1:0") as server,
        socket.create_connection(("127.0.0.1", port_of(server)), timeout=30) as client,
    ):
        client.sendall("\r\n".join(lines).encode())
        assert b" 403 " in client.recv(100)


def test_pages_and_tokens_in_plain_text_beyond_loopback_are_refused_unless_allowed():
    with pytest.raises(
        ConfigError, match=r"http_listen: 0\.0\.0\.0:0 can be reached.*http_tls.*allow_plaintext"
    ):
        Aggregator(AggregatorConfig(listen="127.0.0.1:0", http_listen=EVERYWHERE))
    with aggregator(http_listen=EVERYWHERE, allow_plaintext=True) as running:
        assert running.http_address is not None
