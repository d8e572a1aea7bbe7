"""The chart as an artifact of a registry, and from one version of it to the next and back."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.kubernetes.chart import CHART, ROOT, Loader, helm, one, template

OLDER_VALUES = ROOT / "tests" / "fixtures" / "chart" / "values-2026-11-21.yaml"
"""All values of an earlier chart, as somebody has them in a file of their own."""
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (shutil.which("helm") and shutil.which("docker-registry")) and not os.environ.get("CI"),
        reason="needs Helm (deploy/release/install_helm.sh) and docker-registry",
    ),
]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a registry on this machine, empty and without TLS."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "storage")}},
        "http": {"addr": address},
    }
    (tmp_path / "registry.yaml").write_text(yaml.safe_dump(settings))
    with (tmp_path / "registry.log").open("w") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", tmp_path / "registry.yaml"], stdout=log, stderr=log
        )
    while not answers(address):
        assert process.poll() is None, (tmp_path / "registry.log").read_text()
        time.sleep(0.05)
    yield address
    process.terminate()
    process.wait()


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as asked:
        return asked.connect_ex((host, int(port))) == 0


def of_version(folder: Path, version: str) -> Path:
    """A copy of the chart, of another version."""
    copy = folder / version / "perfd"
    shutil.copytree(CHART, copy)
    text = (copy / "Chart.yaml").read_text()
    current = yaml.safe_load(text)["version"]
    (copy / "Chart.yaml").write_text(text.replace(f"ersion: {current}", f"ersion: {version}"))
    return copy


def rendered(chart: Path, *arguments: str) -> list[dict[str, Any]]:
    found = template(chart, arguments)
    assert found.returncode == 0, found.stderr
    return [document for document in yaml.load_all(found.stdout, Loader) if document]


def test_it_is_installed_from_a_registry_as_from_the_repository(registry: str, tmp_path: Path) -> None:
    packed = helm("package", "--destination", tmp_path, CHART)
    assert packed.returncode == 0, packed.stderr
    (archive,) = tmp_path.glob("perfd-*.tgz")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]

    pushed = helm("push", archive, f"oci://{registry}/charts", "--plain-http")
    assert pushed.returncode == 0, pushed.stderr
    # Without a cluster this is as far as it goes: everything but the API server's answer.
    source = (f"oci://{registry}/charts/perfd", "--version", version, "--plain-http")
    installed = helm("install", "perfd", *source, "--dry-run=client", "--output", "json")

    assert installed.returncode == 0, installed.stderr
    manifest = yaml.safe_load(installed.stdout)["manifest"]
    from_registry = [document for document in yaml.load_all(manifest, Loader) if document]
    hooks = [d for d in rendered(CHART) if "helm.sh/hook" in d["metadata"].get("annotations", {})]
    assert from_registry == [document for document in rendered(CHART) if document not in hooks]
    missing = helm("pull", f"oci://{registry}/charts/perfd", "--version", "9.9.9", "--plain-http")
    assert missing.returncode != 0


def fixed_fields(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """What Kubernetes refuses to change of what exists: an upgrade or rollback of it fails."""
    aggregator = one(documents, "StatefulSet")["spec"]
    names = ("serviceName", "selector", "volumeClaimTemplates", "podManagementPolicy")
    return {name: aggregator.get(name) for name in names} | {
        "agents": one(documents, "DaemonSet")["spec"]["selector"],
        "names": sorted((document["kind"], document["metadata"]["name"]) for document in documents),
    }


def test_another_version_changes_nothing_that_kubernetes_keeps_fixed(tmp_path: Path) -> None:
    before, after = rendered(CHART), rendered(of_version(tmp_path, "9.9.9"))
    assert fixed_fields(before) == fixed_fields(after)
    images = [
        one(d, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["image"] for d in (before, after)
    ]
    assert images[0] != images[1] == f"{images[0].rpartition(':')[0]}:9.9.9"


def test_values_of_an_earlier_chart_are_accepted_and_mean_the_same() -> None:
    older, now = rendered(CHART, f"--values={OLDER_VALUES}"), rendered(CHART)
    assert fixed_fields(older) == fixed_fields(now)
    # The defaults of that day are those of today.
    for kind in ("DaemonSet", "StatefulSet"):
        containers = [
            one(documents, kind)["spec"]["template"]["spec"]["containers"] for documents in (older, now)
        ]
        assert containers[0] == containers[1]
