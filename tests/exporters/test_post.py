"""One deadline for a whole request, whatever the other side does."""

import socket
import ssl
import subprocess
import threading

import pytest
from exporters.support import Receiver

from perfd.config import HttpClientConfig
from perfd.exporters.http_post import Poster
from perfd.net.http import Response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n"
SHORT_S = 0.3
PATIENT_S = 40.0


class Dripping:
    """Accepts one connection, sends `first` at once, and `drop` again and again until it is cut off."""

    def __init__(self, first=b"", drop=b"", *, reads=True, tls=None):
        self._first, self._drop, self._reads, self._tls = first, drop, reads, tls
        self._over = threading.Event()

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self._listener.close()

    def _serve(self):
        connection, _ = self._listener.accept()
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection:
            try:
                if self._reads:
                    connection.recv(65_536)
                connection.sendall(self._first)
                while not self._over.wait(0.02):
                    connection.sendall(self._drop)
            except OSError:
                return


def post(address, body=b"x", *, scheme="http", timeout_s=SHORT_S, **config):
    poster = Poster(
        f"{scheme}://{address}/", HttpClientConfig(timeout_s=timeout_s, **config), key="exporters.x"
    )
    try:
        return poster.post(body, {})
    finally:
        poster.close()


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b""),
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"x"),
        (HEAD + b"\r\n", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["nothing", "status", "headers", "one header", "body", "continue"],
)
def test_an_answer_that_drips_is_given_up_at_the_deadline(first, drop):
    with Dripping(first, drop) as server:
        answer = post(server.address)
    assert answer.status == 0
    assert answer.worth_retrying


def test_a_request_that_nobody_reads_is_given_up_at_the_deadline():
    with Dripping(reads=False) as server:
        assert post(server.address, b"x" * 50_000_000).status == 0


def test_a_name_that_no_resolver_answers_is_given_up_at_the_deadline(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: never.wait())
    answer = post("prometheus.example:9090")
    never.set()
    assert (answer.status, answer.text) == (0, "the name prometheus.example was not found in time")


def test_a_name_that_can_be_none_is_a_failure_like_others():
    assert post("x" * 70, timeout_s=PATIENT_S).worth_retrying


def test_of_several_addresses_the_first_that_answers_is_taken(monkeypatch):
    with Dripping(b"HTTP/1.1 204 No Content\r\n\r\n") as server, socket.socket() as closed:
        # Bound and not listening: it refuses.
        closed.bind(("127.0.0.1", 0))
        ports = (closed.getsockname()[1], int(server.address.rpartition(":")[2]))
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in ports]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert post("prometheus.example:9090", timeout_s=PATIENT_S).status == 204


@pytest.mark.parametrize("drop", [b"", b"\x16"], ids=["nothing", "a record, byte by byte"])
def test_a_handshake_that_drips_is_given_up_at_the_deadline(drop):
    # The begin of a server's hello that is 16,000 bytes long: each byte is in time for a limit of each read.
    with Dripping(b"\x16\x03\x03\x3e\x80\x02\x00\x3e\x7c", drop) as server:
        answer = post(server.address, scheme="https")
    assert (answer.status, answer.text) == (0, "timed out")


@pytest.mark.parametrize("drop", [b"", b"H"])
def test_the_same_holds_over_tls(tmp_path, drop):
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with Dripping(drop=drop, tls=tls) as server:
        assert post(server.address, scheme="https", timeout_s=1.0, ca=str(certificate)).status == 0
    with Dripping(b"HTTP/1.1 204 No Content\r\n\r\n", tls=tls) as server:
        answer = post(server.address, scheme="https", timeout_s=PATIENT_S, ca=str(certificate))
    assert answer.status == 204


def test_a_kept_connection_has_a_deadline_for_each_request():
    with Receiver() as receiver:
        poster = Poster(receiver.url, HttpClientConfig(timeout_s=PATIENT_S), key="exporters.x")
        receiver.answer = lambda _: Response(body=b"taken")
        assert [poster.post(b"1", {}).text for _ in range(3)] == ["taken"] * 3
        poster.close()


def test_an_answer_of_a_server_that_closes_is_read_to_its_end():
    with Dripping(b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlate") as server:
        answer = post(server.address, timeout_s=PATIENT_S)
    assert (answer.status, answer.text) == (503, "late")
