"""Strangers at the HTTP servers: names, tokens, smuggled requests, connections, certificates, terminals."""

import base64
import contextlib
import errno
import http.client
import json
import logging
import shutil
import socket
import ssl
import sys

import pytest
from aggregator.support import aggregator, step

from perfd.cli import main
from perfd.cli.output_escapes import safe_output
from perfd.config import TlsConfig
from perfd.logs import TextFormatter
from perfd.net import AccessControl, HttpServer, Response, ServerTls
from perfd.net.connection_limits import OpenConnection, longest_waiting
from tests.support.fake_agent import FakeAgent
from tests.support.pki import Authority

EVIL = "job\x1b]0;owned\x07\x1b[2J\x1b[31mX\u202eY"


def ask(address, path="/api/v1/jobs", *, headers=None, body=None, context=None):
    """The status and the content of an answer to a GET, or to a POST of a body."""
    host, port = address.rsplit(":", 1)
    if context is not None:
        connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
    else:
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
    with contextlib.closing(connection):
        connection.request("GET" if body is None else "POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def talk(address, data):
    """All that is answered to these bytes until the server ends the connection or is silent."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 20) as client:
        client.settimeout(2)
        client.sendall(data)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while chunk := client.recv(65536):
                answer += chunk
        return answer


@pytest.mark.parametrize(
    ("listen", "host", "status"),
    [
        ("127.0.0.1:0", "localhost:9460", 200),
        ("127.0.0.1:0", "[::1]", 200),
        ("127.0.0.1:0", "rebind.evil.example", 403),
        ("127.0.0.1:0", "perfd.mine.example", 200),
        ("127.0.0.1:0", "10.0.0.7", 403),
        ("0.0.0.0:0", "10.0.0.7:9460", 200),
        ("0.0.0.0:0", "perfd-aggregator", 200),
        ("0.0.0.0:0", "perfd-aggregator.team.svc:9460", 200),
        ("0.0.0.0:0", "rebind.evil.example", 403),
        ("0.0.0.0:0", "rebind.evil.example.", 403),
        ("0.0.0.0:0", "svc.evil.example", 403),
        ("0.0.0.0:0", "", 403),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/jobs", "/metrics", "/"])
def test_a_page_that_names_itself_like_this_server_reads_nothing(listen, host, status, path):
    with aggregator(http_listen=listen, allow_plaintext=True, http_hosts=["perfd.mine.example"]) as running:
        address = running.http_address.replace("0.0.0.0", "127.0.0.1")
        assert ask(address, path, headers={"Host": host})[0] == status


def basic(password):
    return {"Authorization": "Basic " + base64.b64encode(b"anyone:" + password.encode()).decode()}


@pytest.fixture
def tokens(tmp_path):
    for name in ("read", "capture"):
        (tmp_path / name).write_text(f"{name}-token\n")
    return {
        "http_token_file": str(tmp_path / "capture"),
        "http_read_token_file": str(tmp_path / "read"),
    }


@pytest.mark.parametrize(
    ("headers", "reads", "changes"),
    [
        ({}, 401, 401),
        ({"Authorization": "Bearer wrong"}, 401, 401),
        ({"Authorization": "Basic !"}, 401, 401),
        ({"Authorization": "Bearer read-token"}, 200, 401),
        ({"Authorization": "Bearer capture-token"}, 200, 400),
        (basic("read-token"), 200, 401),
        (basic("capture-token"), 200, 400),
    ],
)
def test_each_token_has_its_role(tokens, headers, reads, changes):
    with aggregator(http_listen="127.0.0.1:0", **tokens) as running:
        address = running.http_address
        for path in ("/api/v1/jobs", "/metrics", "/", "/api/v1/captures", "/api/v1/agents"):
            assert ask(address, path, headers=headers)[0] == reads
        body = b'{"job": "none"}'
        sent = {"Content-Type": "application/json", **headers}
        assert ask(address, "/api/v1/captures", headers=sent, body=body)[0] == changes
        assert ask(address, "/api/v1/healthz")[0] == 200
        if not headers:
            assert running.state.audit.counts()["http"] > 0


def test_status_shows_the_token_of_the_environment(tokens, monkeypatch, capsys):
    with aggregator(http_listen="127.0.0.1:0", **tokens) as running:
        assert main(["status", "--aggregator", running.http_address]) == 2
        monkeypatch.setenv("PERFD_TOKEN_FILE", tokens["http_read_token_file"])
        assert main(["status", "--aggregator", running.http_address]) == 0
    assert "read-token" not in capsys.readouterr().err


@pytest.mark.parametrize("head", ["Content-Length: {size}", "Transfer-Encoding: chunked"])
def test_a_request_in_the_body_of_another_one_is_not_answered(head):
    inner = b"GET /api/v1/agents HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with aggregator(http_listen="127.0.0.1:0") as running:
        line = head.format(size=len(inner)).encode()
        outer = b"GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n"
        answer = talk(running.http_address, outer + inner)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"Connection: close" in answer
        assert b"perfd.agents/1" not in answer


@pytest.mark.parametrize("heads", [b"Transfer-Encoding: chunked", b"Content-Length: 2\r\nContent-Length: 50"])
def test_a_body_whose_end_two_servers_could_see_differently_is_refused(heads):
    with aggregator(http_listen="127.0.0.1:0") as running:
        start = b"POST /api/v1/captures HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        answer = talk(running.http_address, start + heads + b"\r\n\r\n{}GET /api/v1/agents HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 411")
        assert answer.count(b"HTTP/1.1") == 1


def test_idle_connections_of_one_address_do_not_block_others():
    with (
        aggregator(http_listen="127.0.0.1:0", health_listen="127.0.0.1:0") as running,
        contextlib.ExitStack() as idle,
    ):
        host, port = running.http_address.rsplit(":", 1)
        # The kernel has all of 127.0.0.0/8, so another address of this machine is another peer.
        other = idle.enter_context(
            socket.create_connection((host, int(port)), 20, source_address=("127.0.0.2", 0))
        )
        for _ in range(1200):
            idle.enter_context(socket.create_connection((host, int(port)), 20))
        for _ in range(3):
            assert ask(running.http_address, "/api/v1/healthz")[0] == 200
        other.sendall(b"GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.recv(15) == b"HTTP/1.1 200 OK"
        assert ask(running.health_address, "/api/v1/healthz")[0] == 200
        assert ask(running.health_address, "/metrics")[0] == 404


def ask_until_served(address, context=None):
    """Ask until the server has seen how its other clients are, which it reads in threads of their own."""
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ask(address, "/x", context=context)[0] == 200:
                return


@pytest.mark.parametrize(
    "sent", [b"G", b"GET /x HTTP/1.1\r\nA: b\r\n", b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_requests_that_never_end_lose_their_place(sent):
    server = HttpServer("127.0.0.1:0", {"/x": lambda _: Response(body=b"ok")}, connections=4, slow_s=0.0)
    host, port = server.address.rsplit(":", 1)
    with contextlib.ExitStack() as slow, contextlib.closing(server):
        for _ in range(4):
            slow.enter_context(socket.create_connection((host, int(port)), 20)).sendall(sent)
        ask_until_served(server.address)


def test_clients_that_do_not_take_their_answers_lose_their_place():
    routes = {"/large": lambda _: Response(body=bytes(64 << 20)), "/x": lambda _: Response(body=b"ok")}
    server = HttpServer("127.0.0.1:0", routes, connections=4, slow_s=0.0)
    host, port = server.address.rsplit(":", 1)
    with contextlib.ExitStack() as stuck, contextlib.closing(server):
        for _ in range(4):
            client = stuck.enter_context(socket.create_connection((host, int(port)), 20))
            client.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
        ask_until_served(server.address)


def test_clients_that_begin_no_handshake_lose_their_place(pki, caplog):
    routes = {"/x": lambda _: Response(body=b"ok")}
    tls = ServerTls(pki.tls("server"), key="http_tls")
    server = HttpServer("127.0.0.1:0", routes, connections=4, tls=tls)
    host, port = server.address.rsplit(":", 1)
    with contextlib.ExitStack() as idle, contextlib.closing(server):
        for _ in range(20):
            idle.enter_context(socket.create_connection((host, int(port)), 20))
        assert ask(server.address, "/x", context=client_context(pki, "client")) == (200, b"ok")
    warnings = [record for record in caplog.records if "Too many HTTP connections" in record.message]
    assert [record.client for record in warnings] == ["127.0.0.1"]
    assert "failed" not in caplog.text


def test_the_one_that_has_been_idle_for_longest_loses_its_place():
    with contextlib.ExitStack() as ends:

        def connection(since_s, *, idle=True, sent=b""):
            ours, theirs = (ends.enter_context(end) for end in socket.socketpair())
            theirs.sendall(sent)
            return OpenConnection(ours, "a", since_s, idle)

        young, old, sending = connection(5.0), connection(2.0), connection(1.0, sent=b"GET")
        slow, busy = connection(0.0, idle=False), connection(None, idle=False)
        everyone = [young, old, sending, slow, busy]
        assert longest_waiting(everyone, 10.0, 1.0) is old
        assert longest_waiting([sending, slow, busy], 10.0, 1.0) is slow
        assert longest_waiting([sending, slow, busy], 1.0, 1.0) is None
        assert longest_waiting([sending, slow, busy], 1.001, 1.0) is slow
        assert longest_waiting([busy], 10.0, 1.0) is None


@pytest.mark.parametrize(
    "target", ["http://[::1/", "http://[x]/", "//[", "\x00", "/%ff%00%0d%0aSet-Cookie:x"]
)
def test_an_address_that_is_none_is_answered_and_leaves_no_trace_in_the_log(target, caplog, capfd):
    server = HttpServer("127.0.0.1:0", {"/x": lambda _: Response(body=b"ok")})
    try:
        answer = talk(server.address, f"GET {target} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        assert answer.split()[1] in {b"400", b"404"}
        assert b"\r\nSet-Cookie" not in answer
    finally:
        server.close()
    assert caplog.text == capfd.readouterr().err == ""


def test_a_server_without_file_descriptors_waits_for_one_and_goes_on(monkeypatch):
    waits = []
    accept = socket.socket.accept

    def without_descriptors(listener):
        if len(waits) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr("perfd.net.connection_limits.time.sleep", waits.append)
    monkeypatch.setattr(socket.socket, "accept", without_descriptors)
    server = HttpServer("127.0.0.1:0", {"/x": lambda _: Response(body=b"ok")})
    try:
        assert ask(server.address, "/x") == (200, b"ok")
        assert waits == [0.1] * 3
    finally:
        server.close()


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("pki"))
    for name in ("server", "renewed", "client"):
        authority.sign(name, names="DNS:localhost,IP:127.0.0.1")
    return authority


def client_context(pki, certificate=None):
    context = ssl.create_default_context(cafile=str(pki.folder / "ca.pem"))
    if certificate is not None:
        context.load_cert_chain(pki.folder / f"{certificate}.pem", pki.folder / f"{certificate}.key")
    return context


def test_http_is_served_over_tls_with_certificates_that_are_renewed(pki, tmp_path):
    for end in ("pem", "key"):
        shutil.copy(pki.folder / f"server.{end}", tmp_path / f"live.{end}")
    tls = TlsConfig(certificate=str(tmp_path / "live.pem"), key=str(tmp_path / "live.key"))
    with aggregator(http_listen="127.0.0.1:0", http_tls=tls) as running:
        context = client_context(pki)
        assert ask(running.http_address, context=context)[0] == 200
        assert b"200" not in talk(
            running.http_address, b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        host, port = running.http_address.rsplit(":", 1)
        for name in ("server", "renewed"):
            for end in ("pem", "key"):
                shutil.copy(pki.folder / f"{name}.{end}", tmp_path / f"live.{end}")
            served = ssl.get_server_certificate((host, int(port)))
            assert served == (pki.folder / f"{name}.pem").read_text()


def test_with_a_ca_clients_need_a_certificate(pki):
    routes = AccessControl("127.0.0.1:0").guard({"/x": lambda _: Response(body=b"ok")})
    server = HttpServer("127.0.0.1:0", routes, tls=ServerTls(pki.tls("server"), key="http_tls"))
    try:
        assert ask(server.address, "/x", context=client_context(pki, "client")) == (200, b"ok")
        with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|EOF|broken pipe"):
            ask(server.address, "/x", context=client_context(pki))
    finally:
        server.close()


def test_names_of_jobs_and_nodes_do_nothing_to_a_terminal(capsys):
    with (
        aggregator(http_listen="127.0.0.1:0") as running,
        FakeAgent(running.grpc_address, node="n\x1b[5m") as agent,
    ):
        agent.hello()
        agent.send(*(step(n, job=EVIL) for n in range(1, 15)))
        running.tick()
        for command in (["status"], ["top", "--once"], ["capture", "list"]):
            assert main([*command, "--aggregator", running.http_address]) == 0
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_texts_of_files_do_nothing_to_a_terminal_but_colors_stay(capsys):
    with safe_output():
        sys.stdout.write(f"\x1b[31mred\x1b[0m {EVIL}")
    shown = capsys.readouterr().out
    assert shown.startswith("\x1b[31mred\x1b[0m ")
    assert "\\x1b]0;owned\\x07\\x1b[2J" in shown
    assert "\\u202e" in shown


def test_the_name_of_a_file_that_cannot_be_read_does_nothing_to_a_terminal(capsys, tmp_path):
    assert main(["analyze", str(tmp_path / EVIL)]) == 2
    shown = capsys.readouterr().err
    assert "owned" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_a_log_line_is_one_line_whatever_names_are_in_it():
    record = logging.makeLogRecord(
        {"msg": "An agent left.", "levelname": "INFO", "node": f"x\n2026 error: {EVIL}"}
    )
    line = TextFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert json.dumps("x\n2026")[1:-1] in line


BODIES = [b'{"job":"\xff"}', b"[" * 500_000, b'{"job": "x", "steps": 99999999999999999999}', b"\0"]


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_is_no_request_is_one_sentence(body):
    with aggregator(http_listen="127.0.0.1:0") as running:
        headers = {"Content-Type": "application/json"}
        status, content = ask(running.http_address, "/api/v1/captures", headers=headers, body=body)
        assert status == 400
        assert json.loads(content)["error"]
