"""Which servers of object storage are used, and what is said of those that are not; none answers here."""

from __future__ import annotations

import ssl
import threading
from http.server import HTTPServer, SimpleHTTPRequestHandler

import pytest

from perfd.config import ObjectReadingConfig
from perfd.errors import ConfigError, StorageError
from perfd.net import ObjectStorage
from tests.support.pki import Authority

pytest.importorskip("obstore")
OTHER = "http://minio.example.com:9000"


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")


def storage(**options):
    return ObjectStorage(ObjectReadingConfig(url="s3://traces/perfd", **options), key="object_storage")


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_plain_text_to_a_machine_that_the_environment_names_has_to_be_allowed(monkeypatch, name):
    monkeypatch.setenv(name, OTHER)
    with pytest.raises(ConfigError, match="plain text") as refused:
        storage()
    assert str(refused.value).startswith(f"object_storage.endpoint ({name}): minio.example.com is another")
    assert storage(allow_plaintext=True).link("a")[0].startswith(OTHER)
    assert storage(endpoint="https://s3.example.org").link("a")[0].startswith("https://s3.example.org/")


def test_a_certificate_that_is_not_trusted_is_named(tmp_path):
    authority = Authority(tmp_path)
    authority.sign("server", names="IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            with pytest.raises(StorageError) as failed:
                storage(endpoint=f"https://127.0.0.1:{server.server_port}").read("a", 1)
        finally:
            server.shutdown()
            serving.join()
    assert "certificate is not trusted: name its authority in `ca`" in str(failed.value)
