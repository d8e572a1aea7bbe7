"""The real SLURM and the image of the Dockerfile, each built once for all tests that look at it or run it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy.kubernetes.images import Image, build, buildah, copy_of_sources
from deploy.slurm.cluster import Cluster, down, processes_that_name, until, up

from perfd.aggregator import Aggregator
from perfd.config import AggregatorConfig

TAG = "localhost/perfd-tests"


@pytest.fixture(scope="session")
def image_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def image(image_sources: Path) -> Iterator[Image]:
    yield build(image_sources, TAG)
    buildah("rmi", "--force", TAG)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    # munge's socket has a short name and everybody must reach it: not in pytest's own directory.
    path = Path(tempfile.mkdtemp(prefix="perfd-slurm-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def aggregator() -> Iterator[Aggregator]:
    """The cluster's, which the agents of the Prolog are configured with."""
    aggregator = Aggregator(AggregatorConfig(listen="127.0.0.1:0", http_listen=None))
    aggregator.start()
    yield aggregator
    aggregator.stop()


@pytest.fixture(scope="module")
def settings(directory: Path, aggregator: Aggregator) -> Path:
    """The file of settings of Prolog, Epilog and TaskProlog."""
    etc = directory / "etc"
    (etc / "bin").mkdir(parents=True)
    (etc / "agent.yaml").write_text("listen: null\n")
    (etc / "plugin.so").touch()
    # The system's log, in a file.
    (etc / "bin" / "logger").write_text(f'#!/bin/sh\nexec sed "s/^/$2: /" >>{directory}/system.log\n')
    (etc / "bin" / "logger").chmod(0o755)
    path = etc / "slurm.sh"
    path.write_text(
        f"PERFD={etc}/perfd\nPERFD_AGGREGATOR={aggregator.grpc_address}\nPERFD_AGENT_CONFIG={etc}/agent.yaml\n"
        f"PERFD_STATE={directory}/jobs\nPERFD_RUN={directory}/run\nPERFD_LOG=stdout\n"
        f"PERFD_NCCL_PLUGIN={etc}/plugin.so\n"
    )
    return path


@pytest.fixture(scope="module")
def cluster(directory: Path, settings: Path) -> Iterator[Cluster]:
    scripts = directory / "repository" / "deploy" / "slurm"
    for name, script in (("Prolog", "prolog"), ("Epilog", "epilog"), ("TaskProlog", "task-prolog")):
        path = settings.parent / name
        path.write_text(
            f"#!/bin/sh\nexport PERFD_SLURM_CONF={settings} PATH={settings.parent}/bin:$PATH\n"
            f"exec {scripts}/{script}.sh\n"
        )
        path.chmod(0o755)
    started = up(directory, nodes=5, gpus=8)
    yield started
    down(started)
    until(lambda: processes_that_name(str(directory)) == [], "the end of all processes")
