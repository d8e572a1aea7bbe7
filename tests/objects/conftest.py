"""Fixtures of captures and of pages, for captures whose files are in object storage."""

from collections.abc import Iterator

import pytest
from capture.conftest import make_node  # noqa: F401
from capture.test_end_to_end import make_system, node  # noqa: F401
from objects.object_server import make_bucket, s3_server
from web.conftest import browser, tab  # noqa: F401

from tests.support.services import Service


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An S3 server with a bucket `traces`."""
    with s3_server(tmp_path_factory.mktemp("s3")) as started:
        make_bucket(started.url, "traces")
        yield started
