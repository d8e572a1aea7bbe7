"""A release: what must agree, what the workflow may do, and what is checked before anything is published."""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import perfd
from deploy.release.make_release import CHART, disagreements

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "deploy" / "release"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
TAG = f"v{perfd.__version__}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files in which a version is."""
    for name in (Path("perfd/__init__.py"), CHART / "Chart.yaml", Path("CHANGELOG.md")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def test_package_image_and_chart_have_one_version() -> None:
    assert disagreements(ROOT, None) == []


def test_the_script_imports_nothing_that_its_lock_file_lacks() -> None:
    body = ast.parse((SCRIPTS / "make_release.py").read_text()).body
    imported = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in body if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize("key", ["version", "appVersion"])
def test_a_chart_of_another_version_is_not_released(project: Path, key: str) -> None:
    chart = project / CHART / "Chart.yaml"
    chart.write_text(re.sub(rf"^{key}: .*$", f"{key}: 9.9.9", chart.read_text(), flags=re.MULTILINE))
    assert disagreements(project, None) == [f"perfd is {perfd.__version__}, {key} of the chart is 9.9.9"]


def test_a_tag_must_be_that_of_the_version_and_the_changelog_must_know_it(project: Path) -> None:
    changelog = project / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## [Unreleased]", f"## [{perfd.__version__}]"))
    assert disagreements(project, TAG) == []
    assert disagreements(project, "v9.9.9") == [f"the tag is v9.9.9, perfd is {perfd.__version__}"]
    changelog.write_text("# Changelog\n")
    assert disagreements(project, TAG) == [f"CHANGELOG.md has nothing about {perfd.__version__}"]


def uses(workflow: dict[str, Any]) -> list[str]:
    return [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]


def test_the_workflow_runs_nothing_that_can_change_under_it() -> None:
    text = WORKFLOW.read_text()
    workflow = yaml.safe_load(text)
    assert uses(workflow)
    assert [one for one in uses(workflow) if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one)] == []
    base = re.findall(r"^ARG PYTHON=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert [job["container"] for job in workflow["jobs"].values() if "container" in job] == base
    # Text of others, such as a branch's name, never becomes part of a shell's program.
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []
    for script in re.findall(r"deploy/release/\S+\.(?:sh|py)", text):
        assert (ROOT / script).is_file()


def test_only_what_was_tested_is_published_and_only_from_a_tag() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    writers = [name for name, job in workflow["jobs"].items() if "permissions" in job]
    assert writers == ["publish"]
    publish = workflow["jobs"]["publish"]
    assert set(publish["needs"]) == set(workflow["jobs"]) - {"publish"}
    assert publish["if"] == "github.event_name == 'push'"
    # PyYAML reads `on` as true.
    assert workflow[True]["push"] == {"tags": ["v*"]}


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """What the jobs of the workflow hand on, with other contents."""
    version = perfd.__version__
    contents = {
        "one": [f"perfd-{version}.tar.gz", f"perfd-{version}-py3-none-manylinux_2_34_x86_64.whl"],
        "two": [f"perfd-{version}.tar.gz", f"perfd-{version}-py3-none-manylinux_2_34_aarch64.whl"],
        "three": [f"perfd-{version}.tgz"],
    }
    for job, names in contents.items():
        (tmp_path / job).mkdir()
        lines = []
        for name in names:
            (tmp_path / job / name).write_text(name)
            lines.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n")
        (tmp_path / job / "SHA256SUMS").write_text("".join(lines))
    (tmp_path / "three" / "image").mkdir()
    (tmp_path / "three" / "image" / "manifest.json").write_text("{}")
    return tmp_path


def publish(folder: Path, tag: str = TAG) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "TAG": tag, "REGISTRY": "registry.example/perfd"}
    command = [SCRIPTS / "publish.sh", folder, "--dry-run"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_dry_run_says_what_it_would_publish(built: Path) -> None:
    done = publish(built)
    assert (done.returncode, done.stderr) == (0, "")
    said = [line.split(" ")[:3] for line in done.stdout.splitlines()]
    assert said == [
        ["skopeo", "login", "--username"],
        ["helm", "registry", "login"],
        ["skopeo", "copy", "--quiet"],
        ["helm", "push", said[3][2]],
        ["python3", "-m", "sigstore"],
        ["uv", "publish", "--trusted-publishing"],
        ["gh", "release", "create"],
    ]
    for name in ("x86_64.whl", "aarch64.whl", ".tar.gz"):
        assert name in done.stdout.splitlines()[5]
    assert "docker://registry.example/perfd/perfd:" + perfd.__version__ in done.stdout
    assert [path for path in built.rglob("*") if "sigstore" in path.name] == []


def test_a_file_that_changed_after_it_was_built_is_not_published(built: Path) -> None:
    next(built.glob("*/*.whl")).write_text("another")
    done = publish(built)
    assert (done.returncode, done.stdout) == (1, "")
    assert "SHA256SUMS does not hold" in done.stderr


def test_machines_that_built_different_sources_publish_nothing(built: Path) -> None:
    (sdist,) = (built / "two").glob("*.tar.gz")
    sums = built / "two" / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(hashlib.sha256(sdist.read_bytes()).hexdigest(), "0" * 64))
    sdist.write_text("another")
    digest = hashlib.sha256(b"another").hexdigest()
    sums.write_text(sums.read_text().replace("0" * 64, digest))
    done = publish(built)
    assert (done.returncode, done.stdout) == (1, "")
    assert "2 source distributions differ" in done.stderr


def test_files_of_another_version_or_without_a_chart_or_image_are_not_published(built: Path) -> None:
    assert "is not of 9.9.9" in publish(built, "v9.9.9").stderr
    (built / "three" / "image" / "manifest.json").unlink()
    assert publish(built).stderr == "publish: there is no image\n"
    shutil.rmtree(built / "three")
    assert publish(built).returncode == 1
    shutil.rmtree(built / "one")
    shutil.rmtree(built / "two")
    assert "there is nothing in" in publish(built).stderr
