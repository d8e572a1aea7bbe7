"""The image of the Dockerfile, built once for all tests that look at it or run it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy.kubernetes.images import Image, build, buildah, copy_of_sources

TAG = "localhost/perfd-tests"


@pytest.fixture(scope="session")
def image_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def image(image_sources: Path) -> Iterator[Image]:
    yield build(image_sources, TAG)
    buildah("rmi", "--force", TAG)
