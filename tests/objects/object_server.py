"""A real S3 server on loopback (moto's), and a proxy in front of it that fails in ways that servers do."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest

from tests.support.services import Service

PROGRAMS = Path(os.environ.get("PERFD_SERVICES", "/nowhere"))
NEEDS_SERVER = pytest.mark.skipif(
    not (PROGRAMS / "moto_server").exists() and not os.environ.get("CI"),
    reason="needs moto (deploy/lock/services.txt), in the folder PERFD_SERVICES",
)
ACCESS_KEY = "AKIATESTACCESSKEY"
SECRET_KEY = "hunter2-secret-access-key"
_FULL = b"<Error><Code>QuotaExceeded</Code><Message>Full for AKIATESTACCESSKEY</Message></Error>"
_DAMAGED = b"<Error><Code>BadDigest</Code><Message>The checksum did not match.</Message></Error>"


def s3_server(folder: Path) -> Service:
    """A server whose buckets are in its memory."""
    command = [PROGRAMS / "moto_server", "-H", "127.0.0.1", "-p"]
    # It imports for long on a busy machine; one that ended is seen at once.
    return Service(
        lambda port: [*command, str(port)], ready="/moto-api/", folder=folder, start_within_s=300.0
    )


def make_bucket(url: str, name: str) -> None:
    subprocess.run(["curl", "-fsS", "-X", "PUT", f"{url}/{name}"], check=True, capture_output=True)


def credentials(path: Path, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> Path:
    """A file of credentials."""
    path.write_text(
        f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n",
        encoding="utf-8",
    )
    return path


def with_boto(script: str, *arguments: str) -> str:
    """What a script with boto3, which is beside moto, prints."""
    done = subprocess.run(
        [PROGRAMS / "python", "-c", script, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def opened(link: str) -> tuple[bytes, dict[str, str]]:
    """A file and the answer's headers, as a browser gets them."""
    with urllib.request.urlopen(link, timeout=60) as answer:
        return answer.read(), {name.lower(): value for name, value in answer.headers.items()}


class FaultyProxy:
    """Passes requests on to a server, except as `fault` says for those that store something.

    `full`: they are refused. `damaged`: one byte changes on the way, and like Amazon's server it refuses what
    does not have its checksum. `stuck`: nothing happens until the fault changes. A context manager.
    """

    def __init__(self, url: str) -> None:
        self.fault = ""
        self.requests = 0
        self.stuck = threading.Semaphore(0)
        """Released for each request that is stuck."""
        self._released = threading.Event()
        proxy, target = self, url.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                storing, proxy.requests = self.command == "PUT", proxy.requests + 1
                if storing and proxy.fault == "stuck":
                    proxy.stuck.release()
                    proxy._released.wait()
                if storing and proxy.fault == "full":
                    self._answer(507, {}, _FULL)
                    return
                if storing and proxy.fault == "damaged":
                    body = bytes([body[0] ^ 1]) + body[1:]
                if storing and not self._undamaged(body):
                    self._answer(400, {}, _DAMAGED)
                    return
                connection = http.client.HTTPConnection(target, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                self._answer(answer.status, dict(answer.getheaders()), answer.read())
                connection.close()

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815

            def _undamaged(self, body: bytes) -> bool:
                claimed = self.headers.get("x-amz-checksum-sha256")
                assert claimed, "every part has a checksum"
                return base64.b64decode(claimed) == hashlib.sha256(body).digest()

            def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for name, value in headers.items():
                        if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                            self.send_header(name, value)
                    length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
                    self.send_header("Content-Length", length)
                    self.end_headers()
                    self.wfile.write(b"" if self.command == "HEAD" else body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def release(self) -> None:
        """Let what is stuck go on, without a fault."""
        self.fault = ""
        self._released.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def faulty(url: str) -> Iterator[FaultyProxy]:
    """A proxy in front of a server."""
    with FaultyProxy(url) as proxy:
        yield proxy
