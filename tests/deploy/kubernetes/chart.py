"""The chart as Helm renders it, and what may be said against a document."""

import functools
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "kubernetes" / "perfd"
KUBERNETES = ("1.29", "1.34")
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
CUSTOM = yaml.safe_load((Path(__file__).parent / "custom_resources.yaml").read_text())
"""Small schemas of what the chart uses of resources that Kubernetes itself does not know."""

Document = dict[str, Any]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """One run of Helm, whatever comes of it."""
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False, timeout=120)


def render(values: Mapping[str, Any], *arguments: str, chart: Path = CHART) -> list[Document]:
    """The documents of the chart with these values."""
    found = template(chart, sets(values), arguments)
    assert found.returncode == 0, found.stderr
    return [document for document in yaml.load_all(found.stdout, Loader) if document]


@functools.cache
def template(
    chart: Path, values: Sequence[str], arguments: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """What Helm makes of the chart. Its answer is always the same: many tests look at one."""
    return helm("template", "perfd", chart, *values, *arguments)


def sets(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Values as arguments of Helm."""
    return tuple(f"--set-json={key}={json.dumps(value)}" for key, value in values.items())


def refusal(values: Mapping[str, Any]) -> str:
    """What Helm says against these values."""
    found = template(CHART, sets(values))
    assert found.returncode != 0, found.stdout
    return found.stderr


def one(documents: Sequence[Document], kind: str, name: str | None = None) -> Document:
    """The only document of a kind, and of a name where there are several."""
    found = [d for d in documents if d["kind"] == kind and name in {None, d["metadata"]["name"]}]
    assert len(found) == 1, [(d["kind"], d["metadata"]["name"]) for d in documents]
    return found[0]


def mistakes(document: Document, version: str) -> list[str]:
    """What a version of Kubernetes does not know or take of a document."""
    import jsonschema  # noqa: PLC0415  (3 s, which whoever only collects tests need not wait)

    schema = CUSTOM.get(document["kind"])
    if schema is None:
        return core_mistakes(document, version)
    problems = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]
    for kind, embedded in embedded_documents(document):
        problems += [f"{kind}: {problem}" for problem in core_mistakes(embedded, version)]
    return problems


def core_mistakes(document: Document, version: str) -> list[str]:
    """What Kubernetes itself says of one."""
    return _core_mistakes(json.dumps(document, sort_keys=True), version)


@functools.cache
def _core_mistakes(document: str, version: str) -> list[str]:
    """Most documents are the same whatever the values, and for each one the schemas of all are read."""
    import kubernetes_validate  # noqa: PLC0415  (as jsonschema)

    try:
        kubernetes_validate.validate(json.loads(document), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def embedded_documents(document: Document) -> list[tuple[str, Document]]:
    """Jobs and pods inside a custom resource, each as a document of its own."""
    spec = document.get("spec", {})
    if document["kind"] == "JobSet":
        found = [("Job", "batch/v1", job["template"]["spec"]) for job in spec["replicatedJobs"]]
    elif document["kind"] == "PyTorchJob":
        found = [("Pod", "v1", part["template"]["spec"]) for part in spec["pytorchReplicaSpecs"].values()]
    else:
        found = []
    metadata = {"name": "embedded"}
    return [
        (kind, {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": inner})
        for kind, version, inner in found
    ]


def pod_specs(documents: Sequence[Document]) -> list[Document]:
    """The specification of every pod that the documents make."""
    found = []
    for document in documents:
        if document["kind"] == "Pod":
            found.append(document["spec"])
        if document["kind"] in {"DaemonSet", "Deployment", "StatefulSet", "Job"}:
            found.append(document["spec"]["template"]["spec"])
        for kind, embedded in embedded_documents(document):
            spec = embedded["spec"]
            found.append(spec["template"]["spec"] if kind == "Job" else spec)
    return found


def containers(spec: Document) -> list[Document]:
    """All containers of a pod, those of the start too."""
    return [*spec.get("initContainers", []), *spec["containers"]]
