"""Captures of pods of the chart by their names: two pods with a sidecar each, joined by a network."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deploy.kubernetes.chart import Document, one, render
from deploy.kubernetes.images import ROOT, Image, run
from deploy.kubernetes.pods import Running, pod, running, until, with_state

TOOLS = ("helm", "podman", "buildah", "runc", "nsenter", "ip", "gcc")
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (all(map(shutil.which, TOOLS)) and os.geteuid() == 0) and not os.environ.get("CI"),
        reason="needs root, podman and tests/deploy/kubernetes/install.sh",
    ),
]
AGGREGATOR = "10.231.7.1"
TOKEN = "of-this-test"
NVML = """
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 0; return 0; }
"""
"""As much of the driver as tells that it is there. It lists no process, as in any container."""
LOG = "env -u RANK python3 /opt/tests/session/fake_trainer.py 100000 0.1"
POLLS = """exec python3 -P /opt/tests/support/kineto_stand_in.py '{"socket_directory": "/run/perfd"}'"""


def values(image: Image, rank: int) -> dict[str, Any]:
    """What docs/deploy-kubernetes.md says for captures with Kineto, and a job of two pods."""
    capture = {"enabled": True, "min_free_bytes": 0}
    return {
        "image": {"repository": image.tag, "tag": "latest"},
        "aggregatorAddress": f"{AGGREGATOR}:9461",
        "aggregator.config": {"capture_tool": "kineto", "http_token_file": "/etc/perfd-token/token"},
        "aggregator.extraVolumes": [{"name": "token", "secret": {"secretName": "token"}}],
        "aggregator.extraVolumeMounts": [{"name": "token", "mountPath": "/etc/perfd-token"}],
        "sidecar.config": {
            "capture": {**capture, "kineto": {"enabled": True, "socket_directory": "/run/perfd"}}
        },
        "training.enabled": True,
        "training.image": f"{image.tag}:latest",
        # Megatron-LM logs in the last rank.
        "training.command": ["bash", "-c", f"{LOG} & {POLLS}" if rank else POLLS],
        "training.env": [
            {"name": "RANK", "value": str(rank)},
            {"name": "WORLD_SIZE", "value": "2"},
            {"name": "KINETO_USE_DAEMON", "value": "1"},
            {"name": "KINETO_IPC_SOCKET_DIR", "value": "/run/perfd"},
        ],
        "training.gpusPerNode": 0,
        "training.volumes": [{"name": "tests", "hostPath": {"path": str(ROOT / "tests")}}],
        "training.volumeMounts": [{"name": "tests", "mountPath": "/opt/tests", "readOnly": True}],
    }


def with_driver(spec: Document, library: Path) -> Document:
    """The pod with the driver's library in its sidecar, as NVIDIA's container runtime would put it there."""
    (sidecar,) = [found for found in spec["initContainers"] if found["name"] == "perfd"]
    sidecar["env"].append({"name": "LD_LIBRARY_PATH", "value": "/opt/nvml"})
    sidecar["volumeMounts"].append({"name": "nvml", "mountPath": "/opt/nvml", "readOnly": True})
    spec["volumes"].append({"name": "nvml", "hostPath": {"path": str(library)}})
    return spec


def driver(directory: Path) -> Path:
    """A folder with a library that answers as the driver's does on a node without a GPU."""
    directory.mkdir()
    source = directory / "nvml.c"
    source.write_text(NVML)
    run("gcc", "-shared", "-fPIC", "-o", str(directory / "libnvidia-ml.so.1"), str(source))
    return directory


def join(first: Running, second: Running) -> None:
    """A network of the two pods and nobody else."""
    link = ("ip", "link", "add", "pods", "netns", first.pid(), "type", "veth")
    run(*link, "peer", "name", "pods", "netns", second.pid())
    for found, address in ((first, AGGREGATOR), (second, "10.231.7.2")):
        run(*found.inside("ip", "address", "add", f"{address}/24", "dev", "pods"))
        run(*found.inside("ip", "link", "set", "pods", "up"))


def capture(found: Running, ranks: str, token: Path) -> dict[str, Any]:
    """How a capture ended that was asked for as a user asks."""
    verb = (sys.executable, "-m", "perfd", "capture", "start", "pretrain", "--ranks", ranks, "--steps", "2")
    asked = subprocess.run(
        found.inside(*verb, "--wait", "--json", "--token-file", str(token)),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    reported: dict[str, Any] = (
        json.loads(asked.stdout)["capture"] if asked.stdout else {"state": asked.stderr}
    )
    return reported


def newest_done(found: Running) -> Any:
    """The newest of the captures that are done."""
    captures = found.json("/api/v1/captures")["captures"]
    return next(one for one in reversed(captures) if one["state"] == "done")


def test_a_capture_of_pods_by_their_names_is_of_the_ranks_in_them_and_of_no_others(
    image: Image, tmp_path: Path
) -> None:
    library = driver(tmp_path / "nvml")
    token = tmp_path / "token" / "token"
    token.parent.mkdir()
    token.write_text(TOKEN)
    names = [f"pretrain-{os.getpid()}-{index}" for index in range(2)]
    with contextlib.ExitStack() as stack:
        pods = []
        for rank, name in enumerate(names):
            documents = render(values(image, rank))
            specs = {"training": with_driver(one(documents, "Job")["spec"]["template"]["spec"], library)}
            if rank == 0:
                specs["aggregator"] = with_state(documents)
            directory = tmp_path / name
            directory.mkdir()
            (directory / "token").symlink_to(token.parent)
            text = pod(name, documents, specs, directory, node=f"node-{rank}")
            pods.append(stack.enter_context(running(name, text, directory)))
        join(*pods)
        until(lambda: pods[0].get(9460, "/api/v1/readyz")[0] == 200, "the aggregator")
        until(lambda: len(pods[0].json("/api/v1/jobs")["jobs"]) == 1, "the job")
        # Refused until the ranks are known, and late where the machine is busy.
        by_name = f"pod={names[1]}"
        until(lambda: capture(pods[0], by_name, token)["state"] == "done", "a capture by name", 300)
        reported = newest_done(pods[0])
        assert [(rank["rank"], rank["node"]) for rank in reported["ranks"]] == [(1, "node-1")]
        made = tmp_path / names[1] / "training-perfd-state" / "spool" / "captures" / reported["id"]
        assert list(made.glob("rank1_*.trace.json"))
        assert not list((tmp_path / names[0]).glob("training-perfd-state/spool/captures/*/rank*"))
        nobody = capture(pods[0], "pod=pretrain-none", token)
        assert nobody["state"] == "refused"
        assert f"its ranks are in {names[0]}, {names[1]}." in nobody["reason"]
        until(lambda: capture(pods[0], "pod=pretrain-*", token)["state"] == "done", "one of both pods", 300)
        both = newest_done(pods[0])["ranks"]
        assert [(rank["rank"], rank["node"]) for rank in both] == [(0, "node-0"), (1, "node-1")]
        assert both[0]["started_unix_s"] == both[1]["started_unix_s"], "libkineto is told one moment"
