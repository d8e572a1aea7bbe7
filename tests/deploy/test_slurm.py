"""perfd beside jobs of a real SLURM: four nodes of eight GPUs each, on this machine."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy.slurm.cluster import Cluster, down, processes_that_name, until, up

from perfd.aggregator import Aggregator
from perfd.config import AggregatorConfig

TOOLS = ("slurmctld", "slurmd", "munged", "srun")
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not (all(map(shutil.which, TOOLS)) and os.geteuid() == 0) and not os.environ.get("CI"),
        reason="needs root and SLURM (Debian packages `slurm-wlm` and `munge`)",
    ),
]
HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy" / "slurm"
PERFD = Path(sys.executable).with_name("perfd")
NODES = ("n1", "n2", "n3", "n4")


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
def cluster(directory: Path, aggregator: Aggregator) -> Iterator[Cluster]:
    etc = directory / "etc"
    etc.mkdir()
    # The nodes share a /tmp here, and with it the place of the hook's socket.
    (etc / "agent.yaml").write_text("listen: null\ncollectors: {hook: {enabled: false}}\n")
    (etc / "plugin.so").touch()
    (etc / "slurm.sh").write_text(
        f"PERFD={PERFD}\nPERFD_AGGREGATOR={aggregator.grpc_address}\nPERFD_AGENT_CONFIG={etc}/agent.yaml\n"
        f"PERFD_STATE={directory}/jobs\nPERFD_NCCL_PLUGIN={etc}/plugin.so\n"
    )
    for name, script in (("Prolog", "prolog"), ("Epilog", "epilog"), ("TaskProlog", "task-prolog")):
        path = etc / name
        path.write_text(
            f"#!/bin/sh\nenv >>{directory}/log/{name}.$SLURMD_NODENAME.env\n"
            f"export PERFD_SLURM_CONF={etc}/slurm.sh\nexec {DEPLOY}/{script}.sh\n"
        )
        path.chmod(0o755)
    started = up(directory, nodes=len(NODES), gpus=8)
    yield started
    down(started)
    until(lambda: processes_that_name(str(directory)) == [], "the end of all processes")


def script(directory: Path, *commands: str) -> Path:
    directory.mkdir()
    path = directory / "job.sh"
    path.write_text(
        "\n".join(("#!/bin/bash", "#SBATCH --nodes=4 --ntasks-per-node=2 --gpus-per-node=8", *commands))
    )
    return path


def test_two_lines_in_a_batch_script_show_every_node_and_step(cluster: Cluster, directory: Path) -> None:
    path = script(
        directory / "sidecar",
        f"{DEPLOY}/perfd-sidecar start",
        f"srun {HERE}/slurm/trainer.sh 20",
        f"{DEPLOY}/perfd-sidecar stop",
    )
    job = cluster.submit(path, PERFD=str(PERFD), PERFD_SPOOL=str(directory))
    until(lambda: cluster.ended(job), "the end of the job")
    printed = (path.parent / f"{job}.out").read_text()
    assert "perfd-sidecar:" not in printed
    status = json.loads((path.parent / f"perfd-{job}" / "status.json").read_text())
    (seen,) = [entry for entry in status["jobs"] if entry["name"] == job]
    assert (seen["steps"]["count"], seen["steps"]["last"]) == (20, 20)
    assert {agent["node"] for agent in status["agents"]} == set(NODES)
    assert [agent["dropped_records"] for agent in status["agents"]] == [0] * 4
    assert processes_that_name(str(path.parent)) == []
    assert list(directory.glob("perfd-*")) == []


def test_scancel_ends_sidecar_and_aggregator(cluster: Cluster, directory: Path) -> None:
    path = script(
        directory / "cancelled",
        f"{DEPLOY}/perfd-sidecar start",
        f"srun {HERE}/slurm/trainer.sh 3000",
    )
    job = cluster.submit(path, PERFD=str(PERFD), PERFD_SPOOL=str(directory))
    until(lambda: "iteration" in output(path, job), "the first step")
    until(lambda: len(processes_that_name(f"{directory}/perfd-{job}-")) >= len(NODES), "four agents")
    cluster("scancel", job)
    until(lambda: cluster.ended(job), "the end of the job")
    until(lambda: not processes_that_name(str(path.parent)), "the end of the aggregator")
    until(lambda: not processes_that_name(f"{directory}/perfd-{job}-"), "the end of the agents")


def test_prolog_starts_an_agent_on_each_node_and_epilog_leaves_nothing(
    cluster: Cluster, directory: Path, aggregator: Aggregator
) -> None:
    path = script(directory / "whole", "srun bash -c 'env' >environ", "while [ ! -e go ]; do sleep 0.1; done")
    job = cluster.submit(path)
    until(lambda: agents_of(directory, job) == len(NODES), "four agents")
    until(lambda: nodes_of(aggregator) >= set(NODES), "their streams")
    (path.parent / "go").touch()
    until(lambda: cluster.ended(job), "the end of the job")
    until(lambda: not list((directory / "jobs").glob("*/*")), "the end of the Epilogs")
    until(lambda: agents_of(directory, job) == 0, "the end of the agents")
    environ = (path.parent / "environ").read_text()
    assert f"NCCL_PROFILER_PLUGIN={directory}/etc/plugin.so\n" in environ
    assert "KINETO_USE_DAEMON=1\n" in environ


def output(path: Path, job: str) -> str:
    found = path.parent / f"{job}.out"
    return found.read_text() if found.exists() else ""


def agents_of(directory: Path, job: str) -> int:
    """How many agents run that the Prolog started for a job."""
    lines = processes_that_name(f" agent --config {directory}/etc/agent.yaml ")
    return sum(line.rstrip().endswith(f"--job {job}") for line in lines)


def nodes_of(aggregator: Aggregator) -> set[str]:
    return {str(agent["node"]) for agent in aggregator.agents() if agent["connected"]}
