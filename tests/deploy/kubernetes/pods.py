"""Pods of the chart, run by podman.

podman 4.3 is no kubelet: it knows no native sidecars, no claims and no probes over HTTP without curl, it
publishes every port, and its
emptyDir is not writable for everyone. What is changed for it is in `pod`, and nothing else.
"""

import copy
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from deploy.kubernetes.chart import Document, containers, one
from deploy.kubernetes.images import podman, run

NODE = "node-a"
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
NAMESPACE = "research"
"""Of the downward API, podman knows the pod's own name, but neither its node's nor its namespace."""


def until(holds: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    """Come back as soon as something holds that other processes bring about."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.1)


def pod(
    name: str,
    documents: Sequence[Document],
    specs: Mapping[str, Document],
    directory: Path,
    node: str = NODE,
) -> str:
    """One Pod with the containers of several, as YAML for podman.

    Their volumes are the folders `PART-VOLUME` of `directory`; `node` is where Kubernetes would have put it.
    """
    parts = [prefixed(part, spec) for part, spec in specs.items()]
    first = [c for spec in parts for c in spec.get("initContainers", [])]
    spec = {
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": 10001, "runAsGroup": 10001},
        "shareProcessNamespace": any(spec.get("shareProcessNamespace") for spec in parts),
        "initContainers": [for_podman(c, node) for c in first if "restartPolicy" not in c],
        "containers": [for_podman(c, node) for spec in parts for c in spec["containers"]]
        + [for_podman(c, node) for c in first if "restartPolicy" in c],
        "volumes": [volume(v, directory) for spec in parts for v in spec["volumes"]],
    }
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump_all([*(d for d in documents if d["kind"] == "ConfigMap"), made])


def prefixed(part: str, spec: Document) -> Document:
    """A pod's specification in which each volume has a name of its own."""
    made: Document = copy.deepcopy(spec)
    for item in [*made["volumes"], *(mount for c in containers(made) for mount in c.get("volumeMounts", []))]:
        item["name"] = f"{part}-{item['name']}"
    return made


def for_podman(container: Document, node: str) -> Document:
    """A container without what podman does not know."""
    kept = {key: value for key, value in container.items() if key not in {*PROBES, "restartPolicy", "ports"}}
    known = {"spec.nodeName": node, "metadata.namespace": NAMESPACE}
    kept["env"] = [
        {"name": e["name"], "value": known[path]} if (path := _field(e)) in known else e
        for e in container.get("env", [])
    ]
    kept["args"] = [argument.replace("$(PERFD_NODE)", node) for argument in container.get("args", [])]
    kept["imagePullPolicy"] = "Never"
    return kept


def _field(variable: Document) -> str:
    """The field of the pod that an environment variable has as its value; empty for others."""
    path: str = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
    return path


def volume(found: Document, directory: Path) -> Document:
    """A volume for podman: a folder where Kubernetes has an empty directory, a claim or a secret."""
    if "configMap" in found or "hostPath" in found:
        return found
    if "secret" in found:
        path = directory / found["secret"]["secretName"]
        return {"name": found["name"], "hostPath": {"path": str(path), "type": "Directory"}}
    path = directory / found["name"]
    if not path.exists():
        path.mkdir()
        # Everyone may write to an emptyDir, and fsGroup does the same for a claim.
        path.chmod(0o777)
    return {"name": found["name"], "hostPath": {"path": str(path), "type": "Directory"}}


def with_state(documents: Sequence[Document]) -> Document:
    """The pod of the aggregator, its claim a volume like others."""
    stateful: Document = one(documents, "StatefulSet")["spec"]
    spec: Document = stateful["template"]["spec"]
    claims = [{"name": claim["metadata"]["name"]} for claim in stateful.get("volumeClaimTemplates", [])]
    return {**spec, "volumes": [*spec["volumes"], *claims]}


@dataclass(frozen=True, kw_only=True)
class Running:
    """A pod that runs. It has a network of its own with nothing but loopback."""

    name: str

    def container(self, name: str) -> "Container":
        return Container(name=f"{self.name}-{name}")

    def get(self, port: int, path: str) -> tuple[int, str]:
        """Status and body of an answer over HTTP; 0 where nothing listens."""
        script = (
            "import sys, urllib.request as u, urllib.error as e\n"
            "try: r = u.urlopen(sys.argv[1], timeout=10)\n"
            "except e.HTTPError as error: r = error\n"
            "except OSError as error: print(0, error); sys.exit()\n"
            "print(r.status, r.read().decode(), end='')"
        )
        address = f"http://127.0.0.1:{port}{path}"
        status, _, body = run(*self.inside(sys.executable, "-c", script, address)).partition(" ")
        return int(status), body

    def pid(self) -> str:
        """The process that holds the pod's namespaces."""
        infra = json.loads(podman("pod", "inspect", self.name))["InfraContainerID"]
        return podman("inspect", "--format", "{{.State.Pid}}", infra).strip()

    def inside(self, *command: str) -> tuple[str, ...]:
        """A command of this machine in the pod's network."""
        return ("nsenter", "-t", self.pid(), "-n", *command)

    def json(self, path: str) -> Any:
        status, body = self.get(9460, path)
        assert status == 200, body
        return json.loads(body)

    def value(self, series: str, port: int = 9460) -> float | None:
        """The value of one series of /metrics, named as it stands there; None where it is absent."""
        for line in self.get(port, "/metrics")[1].splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return None


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container of a pod."""

    name: str

    def state(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(podman("inspect", self.name))[0]["State"]
        return found

    def stop(self) -> None:
        """End it as the kubelet does."""
        podman("stop", "--time", "30", self.name)

    def ended(self) -> bool:
        return bool(self.state()["Status"] == "exited")

    def log(self) -> str:
        return "".join(line.split(" ", 3)[3] for line in self._log_file().read_text().splitlines(True))

    def _log_file(self) -> Path:
        # `podman logs` has what was written to standard error on its own standard error.
        return Path(podman("inspect", "--format", "{{.HostConfig.LogConfig.Path}}", self.name).strip())

    def memory(self) -> tuple[int, int]:
        """The limit of its control group, and the most that it used, in bytes."""
        lines = Path(f"/proc/{self.state()['Pid']}/cgroup").read_text().splitlines()
        paths = dict(line.split(":", 2)[1:] for line in lines)
        if "memory" in paths:
            group = Path("/sys/fs/cgroup/memory" + paths["memory"])
            names = ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
        else:
            group = Path("/sys/fs/cgroup" + paths[""])
            names = ("memory.max", "memory.peak")
        limit, most = (int((group / name).read_text()) for name in names)
        return limit, most


@contextmanager
def running(name: str, text: str, directory: Path) -> Iterator[Running]:
    """A pod from its start to its end; nothing of it is left."""
    path = directory / "pod.yaml"
    path.write_text(text)
    try:
        podman("play", "kube", "--network", "none", str(path))
        yield Running(name=name)
    finally:
        podman("pod", "rm", "--force", "--time", "0", name)
