"""Servers that hang, drip, redirect, lie or want a key: each has a clear state, and no value is invented."""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from perfd_collectors.serving import SGLANG
from perfd_collectors.serving.collector import ServingOptions
from perfd_collectors.serving.exposition_reader import MAX_PAGE_BYTES
from perfd_collectors.serving.fetch import FetchError, ServerAccess, fetch
from serving.pages import counter, gauge

from perfd.capture.server.server_client import ServerClient
from perfd.cli import main
from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import CaptureError, ConfigError
from perfd.model import SampleTable

Answer = Callable[[socket.socket], None]
PAGE = (
    gauge("sglang:num_running_reqs", ({"model_name": "m"}, 3))
    + counter("sglang:generation_tokens_total", ({"model_name": "m"}, 10))
).encode()


def with_body(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> Answer:
    head = b"\r\n".join([b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers])
    return lambda connection: connection.sendall(head + b"\r\n\r\n" + body)


class RawServer:
    """Answers each connection as it is told, byte by byte if need be."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.asked: list[bytes] = []
        self.ended = threading.Event()
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self.ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                with connection:
                    self.asked.append(connection.recv(65536))
                    self.answer(connection)
            except OSError:
                continue


@pytest.fixture
def serve() -> Iterator[Callable[..., RawServer]]:
    made: list[RawServer] = []

    def start(answer: Answer, **how: ssl.SSLContext) -> RawServer:
        made.append(RawServer(answer, **how))
        return made[-1]

    yield start
    for server in made:
        server.close()


class Watch:
    """A collector that looks at one server, a second further each time."""

    def __init__(self, tmp_path: Path, url: str, **options: object) -> None:
        given = {"urls": (url,), "discover": False, "timeout_s": 20.0, **options}
        self.clock = VirtualClock()
        settings = Settings(node="n1", job="j", clock=self.clock, proc=tmp_path)
        self._collector = SGLANG.create(ServingOptions(**given), settings)  # type: ignore[arg-type]

    def look(self, after_s: float = 1.0) -> dict[str, float]:
        self.clock.advance(after_s)
        *_, table = self._collector.collect()
        assert isinstance(table, SampleTable)
        return {name: values[0] for name, values in table.columns.items()}


def hang(server: list[RawServer]) -> Answer:
    def answer(_: socket.socket) -> None:
        server[0].ended.wait()

    return answer


def drip(pieces: bytes, server: list[RawServer]) -> Answer:
    """One byte after the other until the client has enough of it."""

    def answer(connection: socket.socket) -> None:
        for byte in pieces:
            connection.sendall(bytes([byte]))
            if server[0].ended.wait(0.02):
                return

    return answer


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_server_that_drips_has_as_long_as_one_that_hangs(
    serve: Callable[..., RawServer], start: bytes
) -> None:
    """In its headers or its body: the bound is on the whole answer."""
    known: list[RawServer] = []
    known.append(serve(drip(start + b"a" * 10_000, known) if start else hang(known)))
    with pytest.raises(FetchError, match=r"did not respond within 0.3 s: the server may hang"):
        fetch(known[0].url + "/metrics", ServerAccess(timeout_s=0.3))


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_capture_waits_no_longer_for_a_server_that_drips(
    serve: Callable[..., RawServer], start: bytes
) -> None:
    known: list[RawServer] = []
    known.append(serve(drip(start + b"a" * 10_000, known) if start else hang(known)))
    client = ServerClient(known[0].url.removeprefix("http://"))
    with pytest.raises(CaptureError, match="does not answer: "):
        client.ask("POST", "/start_profile", 0.3, {"num_steps": 5})


def test_a_server_that_hangs_is_down(serve: Callable[..., RawServer], tmp_path: Path) -> None:
    known: list[RawServer] = []
    known.append(serve(hang(known)))
    assert Watch(tmp_path, known[0].url, timeout_s=0.2).look() == {"up": 0.0}


def test_a_server_that_failed_is_left_alone_for_ten_seconds(
    serve: Callable[..., RawServer], tmp_path: Path
) -> None:
    server = serve(with_body(b"", status=b"503 Service Unavailable"))
    watch = Watch(tmp_path, server.url)
    assert watch.look() == {"up": 0.0}
    server.answer = with_body(PAGE)
    assert watch.look(after_s=9.0) == {"up": 0.0}
    assert watch.look(after_s=1.0)["running_requests"] == 3.0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (with_body(b"", b"Location: http://elsewhere/", status=b"307 Temporary Redirect"), "elsewhere"),
        (with_body(b"<html>sign in</html>", b"Content-Type: text/html"), "not a metrics page"),
        (with_body(b'{"status": "ok"}'), "not a metrics page"),
        (with_body(b""), "is empty"),
        (with_body(b"", status=b"401 Unauthorized"), "requires authorization"),
        (with_body(b"", status=b"404 Not Found"), "--enable-metrics"),
        (with_body(b"", status=b"503 Service Unavailable"), "status 503"),
        (with_body(gauge("smg_http_requests_total", ({}, 1)).encode()), "metrics of a router"),
        (with_body(gauge("process_cpu_seconds", ({}, 1)).encode()), "started with --disable-log-stats"),
        (lambda it: it.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\na 1\n"), "before the end"),
        (lambda it: it.sendall(b"SSH-2.0-OpenSSH_9\r\n"), "cannot be read"),
        (lambda it: it.close(), "cannot be read"),
        (with_body(b"x" * 50, b"Content-Encoding: gzip"), "cannot be read"),
        (with_body(gzip.compress(PAGE)[:-9], b"Content-Encoding: gzip"), "before the end"),
    ],
    ids=[
        *("redirect", "html", "json", "nothing", "401", "404", "503", "router", "another exporter", "cut"),
        *("ssh", "closed", "not gzip", "cut gzip"),
    ],
)
def test_what_is_no_page_is_named_and_gives_no_value(
    serve: Callable[..., RawServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answer: Answer,
    words: str,
) -> None:
    server = serve(answer)
    assert Watch(tmp_path, server.url).look() == {"up": 0.0}
    assert main(["serving", server.url, "--timeout", "20"]) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert words in sentence


def test_a_page_of_more_than_50_mib_is_refused_before_it_is_all_here(serve: Callable[..., RawServer]) -> None:
    sent = 0

    def endless(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 4 * MAX_PAGE_BYTES:
            connection.sendall(b"a 1\n" * 65536)
            sent += 4 * 65536

    server = serve(endless)
    with pytest.raises(FetchError, match="not a metrics page"):
        fetch(server.url, ServerAccess(timeout_s=60.0))
    assert sent < 2 * MAX_PAGE_BYTES


def test_a_small_answer_that_unpacks_to_much_is_refused(serve: Callable[..., RawServer]) -> None:
    bomb = gzip.compress(b"\n" * (2 * MAX_PAGE_BYTES))
    server = serve(with_body(bomb, b"Content-Encoding: gzip"))
    with pytest.raises(FetchError, match="not a metrics page"):
        fetch(server.url, ServerAccess(timeout_s=60.0))


@pytest.mark.parametrize(
    "answer",
    [
        with_body(gzip.compress(PAGE), b"Content-Encoding: gzip"),
        with_body(PAGE, b"Content-Type: text/html"),
        with_body(PAGE.replace(b'"m"', b'"\xff"')),
        with_body(PAGE + b'sglang:num_running_reqs{model_name="m"} 9\n'),
        with_body(PAGE + b"sglang:num_running_reqs{model_name="),
        lambda it: it.sendall(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(PAGE), PAGE)
        ),
    ],
    ids=["gzip", "wrong type", "invalid utf-8", "twice", "cut in a line", "chunked"],
)
def test_a_page_in_bad_shape_gives_what_is_certain(
    serve: Callable[..., RawServer], tmp_path: Path, answer: Answer
) -> None:
    row = Watch(tmp_path, serve(answer).url).look()
    assert row["up"] == 1.0
    # In the one that is cut, the family of the last line is in doubt.
    assert row.get("running_requests", 3.0) == 3.0


def look_page(tokens: float, model: str = "m") -> Answer:
    labels = {"model_name": model}
    made = counter("sglang:generation_tokens_total", (labels, tokens))
    return with_body((gauge("sglang:num_running_reqs", (labels, 3)) + made).encode())


@pytest.mark.parametrize("after", [look_page(5), look_page(900, model="other")], ids=["restart", "model"])
def test_a_restart_or_another_model_begins_anew(
    serve: Callable[..., RawServer], tmp_path: Path, after: Answer
) -> None:
    server = serve(look_page(100))
    watch = Watch(tmp_path, server.url)
    watch.look()
    server.answer = look_page(200)
    assert watch.look()["generation_tokens_per_s"] == 100.0
    server.answer = after
    row = watch.look()
    assert row["up"] == 1.0
    assert "generation_tokens_per_s" not in row
    # The server's own counters go on, whatever they were before.
    assert "generation_tokens" in row


def test_a_key_from_a_file_is_sent_and_read_anew(serve: Callable[..., RawServer], tmp_path: Path) -> None:
    server, key = serve(with_body(PAGE)), tmp_path / "key"
    key.write_text("Bearer a\n")
    watch = Watch(tmp_path, server.url, authorization_file=str(key))
    watch.look()
    key.write_text("Bearer b\n")
    watch.look()
    pages = [asked for asked in server.asked if asked.startswith(b"GET /metrics")]
    for letter, asked in zip((b"a", b"b"), pages, strict=True):
        assert b"Authorization: Bearer %b\r\n" % letter in asked
    key.write_text("Bearer a\nX-Other: b\n")
    assert watch.look() == {"up": 0.0}


def test_a_key_file_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="authorization_file"):
        Watch(tmp_path, "http://127.0.0.1:1", authorization_file=str(tmp_path / "nothing"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of its own, with its key, for 127.0.0.1."""
    made = tmp_path_factory.mktemp("tls") / "server.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=perfd"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", made, "-out", made.with_suffix(".crt")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return made


def tls_server(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.with_suffix(".crt"), certificate)
    return context


@pytest.mark.parametrize(
    ("trust", "up"),
    [({}, 0.0), ({"ca": True}, 1.0), ({"insecure": True}, 1.0)],
    ids=["system", "ca", "insecure"],
)
def test_a_server_with_a_certificate_of_its_own_is_trusted_when_configured(
    serve: Callable[..., RawServer], tmp_path: Path, certificate: Path, trust: dict[str, bool], up: float
) -> None:
    server = serve(with_body(PAGE), tls=tls_server(certificate))
    options = {"ca": str(certificate.with_suffix(".crt"))} if "ca" in trust else dict(trust)
    assert Watch(tmp_path, server.url, **options).look()["up"] == up
    words = ["--ca", options["ca"]] if "ca" in trust else ["--insecure"] if trust else []
    assert main(["serving", server.url, "--timeout", "20", *map(str, words)]) == (0 if up else 2)


def test_trusting_everyone_and_only_some_is_a_contradiction(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose one"):
        Watch(tmp_path, "https://127.0.0.1:1", insecure=True, ca="x")


@pytest.fixture
def deaf_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system whose resolver does not answer while the test runs."""
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(20))
    yield
    over.set()


@pytest.mark.usefixtures("deaf_resolver")
def test_a_name_that_no_resolver_answers_is_given_up_at_the_deadline() -> None:
    with pytest.raises(FetchError, match=r"did not respond within 0.1 s"):
        fetch("http://engine.example:30000/metrics", ServerAccess(timeout_s=0.1))


@pytest.mark.usefixtures("deaf_resolver")
def test_a_capture_gives_up_a_name_that_no_resolver_answers() -> None:
    with pytest.raises(CaptureError, match=r"the name engine\.example was not found in time"):
        ServerClient("engine.example:30000").ask("POST", "/start_profile", 0.1)
