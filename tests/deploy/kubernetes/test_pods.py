"""Pods of the chart that really run: trainer, sidecar, agent and aggregator, within their memory limits."""

import contextlib
import copy
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deploy.kubernetes.chart import Document, containers, one, render
from deploy.kubernetes.images import ROOT, Image
from deploy.kubernetes.pods import NODE, PROBES, Running, pod, running, until, with_state

TOOLS = ("helm", "podman", "buildah", "runc", "nsenter")
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (all(map(shutil.which, TOOLS)) and os.geteuid() == 0) and not os.environ.get("CI"),
        reason="needs root, podman and tests/deploy/kubernetes/install.sh",
    ),
]
MIB = 1024 * 1024
IN_THE_WAY = ("Cannot listen on 0.0.0.0:9462", "Another agent (process ")


def values(image: Image, *, steps: int = 100, step_s: float = 0.05) -> dict[str, Any]:
    """A training job whose image is perfd's, with a trainer that prints what Megatron-LM prints."""
    return {
        "image": {"repository": image.tag, "tag": "latest"},
        "aggregatorAddress": "127.0.0.1:9461",
        "training.enabled": True,
        "training.image": f"{image.tag}:latest",
        "training.command": ["python3", "/opt/trainer/fake_trainer.py", str(steps), str(step_s)],
        "training.gpusPerNode": 0,
        "training.resources": {"limits": {"memory": "64Mi"}},
        "training.volumes": [{"name": "trainer", "hostPath": {"path": str(ROOT / "tests" / "session")}}],
        "training.volumeMounts": [{"name": "trainer", "mountPath": "/opt/trainer", "readOnly": True}],
    }


def parts(documents: list[Document]) -> dict[str, Document]:
    """The specifications of all pods of the chart."""
    return {
        "aggregator": with_state(documents),
        "agent": one(documents, "DaemonSet")["spec"]["template"]["spec"],
        "training": one(documents, "Job")["spec"]["template"]["spec"],
    }


def ready(found: Running) -> bool:
    """Whether the aggregator serves."""
    return found.get(9460, "/api/v1/readyz")[0] == 200


def steps(found: Running) -> int:
    """How many steps of the job the aggregator knows."""
    jobs = {job["name"]: job for job in found.json("/api/v1/jobs")["jobs"]}
    return int(jobs["pretrain"]["steps"]["count"]) if "pretrain" in jobs else 0


def answers(found: Running, container: Document, probe: Document) -> bool:
    """Whether the kubelet would be content."""
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    return found.get(ports[probe["httpGet"]["port"]], probe["httpGet"]["path"])[0] == 200


@pytest.fixture
def name() -> str:
    return f"perfd-{os.getpid()}"


def test_steps_of_a_training_pod_reach_the_aggregator_within_the_limits(
    image: Image, name: str, tmp_path: Path
) -> None:
    documents = render(values(image))
    specs = parts(documents)
    del specs["agent"]
    known = {container["name"]: container for spec in specs.values() for container in containers(spec)}
    with running(name, pod(name, documents, specs, tmp_path), tmp_path) as found:
        until(lambda: ready(found), "the aggregator")
        until(lambda: steps(found) > 0, "the first steps")
        (seen,) = found.json("/api/v1/agents")["agents"]
        (job,) = found.json("/api/v1/jobs")["jobs"]
        assert (seen["node"], seen["dropped_records"], job["nodes"]) == (NODE, 0, [NODE])
        assert (tmp_path / "training-perfd" / "libnccl-profiler-perfd.so").exists()
        assert (tmp_path / "aggregator-state" / "history.sqlite").exists()
        for container, limit in (("aggregator", 1024 * MIB), ("perfd", 256 * MIB)):
            assert found.container(container).memory()[0] == limit
            assert found.container(container).memory()[1] < limit / 2
            probes = [known[container][probe] for probe in PROBES if probe in known[container]]
            assert probes
            assert all(answers(found, known[container], probe) for probe in probes)
        until(found.container("pytorch").ended, "the end of the trainer")
        # The kubelet ends a sidecar as soon as the last container has ended.
        found.container("perfd").stop()
        assert [found.container(ended).state()["ExitCode"] for ended in ("pytorch", "perfd")] == [0, 0]
        until(lambda: steps(found) == 100, "all steps")


def test_a_container_beyond_its_limit_is_killed(image: Image, name: str, tmp_path: Path) -> None:
    """So that the limits of the other tests are known to be real."""
    documents = render(
        values(image) | {"training.command": ["python3", "-c", "print(len(b'a' * (300 << 20)))"]}
    )
    specs = {"training": parts(documents)["training"]}
    with running(name, pod(name, documents, specs, tmp_path), tmp_path) as found:
        until(found.container("pytorch").ended, "the end of the greedy one")
        assert found.container("pytorch").state()["ExitCode"] == 137
        assert not found.container("perfd").ended()


def test_two_agents_on_one_node_are_distinguished_or_refused_with_the_reason(
    image: Image, name: str, tmp_path: Path
) -> None:
    """The agent of the DaemonSet, the sidecar of a pod on the node's network, and two agents too many."""
    documents = render(values(image, steps=4000) | {"training.hostNetwork": True})
    specs = parts(documents)
    (agent,) = specs["agent"]["containers"]
    same_port = copy.deepcopy(agent) | {"name": "same-port"}
    one_mount(same_port, "state")["name"] = "another"
    same_spool = copy.deepcopy(agent) | {"name": "same-spool"}
    specs["agent"]["volumes"].append({"name": "another", "emptyDir": {}})
    specs["agent"]["containers"] = [agent, same_port, same_spool]
    with running(name, pod(name, documents, specs, tmp_path), tmp_path) as found:
        until(lambda: ready(found), "the aggregator")
        until(lambda: len(found.json("/api/v1/agents")["agents"]) == 2, "two agents")
        nodes = sorted(entry["node"] for entry in found.json("/api/v1/agents")["agents"])
        assert nodes[0] == NODE
        assert nodes[1].startswith(f"{NODE}~")
        assert "Two agents have the same node name" in found.container("aggregator").log()
        three = [found.container(container) for container in ("agent", "same-port", "same-spool")]
        until(lambda: sum(container.ended() for container in three) == 2, "the end of two agents")
        for container in [container for container in three if container.ended()]:
            assert container.state()["ExitCode"] == 2
            assert any(sentence in container.log() for sentence in IN_THE_WAY)


def one_mount(container: Document, name: str) -> Document:
    """Where a container mounts a volume."""
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == name]
    found: Document = mount
    return found


def test_agent_and_aggregator_show_each_other_their_certificates(
    image: Image, name: str, tmp_path: Path
) -> None:
    make_secrets(tmp_path, "server", "client")
    tls = {"aggregatorSecret": "server", "agentSecret": "client", "mutual": True}
    documents = render(values(image) | {"tls": tls})
    specs = parts(documents)
    del specs["training"]
    with running(name, pod(name, documents, specs, tmp_path), tmp_path) as found:
        until(lambda: ready(found), "the aggregator")
        until(lambda: bool(found.json("/api/v1/agents")["agents"]), "the agent")
        assert found.container("agent").memory()[1] < 128 * MIB


def make_secrets(directory: Path, *names: str) -> None:
    """Folders with what a Secret for TLS has, by cert-manager's names; one authority signs all."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    (directory / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(
        "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority", "-days", "2"
    )
    for name in names:
        (directory / name).mkdir()
        openssl("req", *key, "-keyout", f"{name}/tls.key", "-out", "csr", "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-in", "csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}/tls.crt", "-days", "2", "-extfile", "san"),
        )
        shutil.copy(directory / "ca.crt", directory / name)
        # The kubelet gives the files of a Secret to the pod's group.
        (directory / name / "tls.key").chmod(0o444)


def test_an_aggregator_without_its_volume_says_so_and_ends(image: Image, name: str, tmp_path: Path) -> None:
    documents = render(values(image))
    # Made for root, as where a class of volumes does not know fsGroup.
    (tmp_path / "aggregator-state").mkdir(mode=0o755)
    specs = {"aggregator": parts(documents)["aggregator"]}
    with running(name, pod(name, documents, specs, tmp_path), tmp_path) as found:
        aggregator = found.container("aggregator")
        until(aggregator.ended, "the end of the aggregator")
        assert aggregator.state()["ExitCode"] == 2
        assert "The history file /var/lib/perfd/history.sqlite cannot be used" in aggregator.log()


def test_a_full_volume_costs_history_and_nothing_else(image: Image, name: str, tmp_path: Path) -> None:
    documents = render(values(image, steps=100_000, step_s=0.02))
    specs = parts(documents)
    del specs["agent"]
    volume = tmp_path / "aggregator-state"
    volume.mkdir()
    with small_volume(volume), running(name, pod(name, documents, specs, tmp_path), tmp_path) as found:
        until(lambda: ready(found), "the aggregator")
        until(lambda: steps(found) > 0, "the first steps")
        filler = volume / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096) == 4096:
                pass
        until(lambda: found.value("perfd_history_up") == 0, "the failure of history")
        before = steps(found)
        until(lambda: steps(found) > before, "steps without history")
        assert found.get(9460, "/api/v1/readyz")[0] == 200
        filler.unlink()
        until(lambda: found.value("perfd_history_up") == 1, "history again")


@contextlib.contextmanager
def small_volume(path: Path) -> Iterator[None]:
    """A file system of 4 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=0777", "perfd-tests", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)
