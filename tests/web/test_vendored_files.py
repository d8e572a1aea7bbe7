"""What others wrote and perfd ships is listed with its license, and is as they made it."""

import hashlib
import json
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT / "perfd" / "web" / "vendor" / "vendored.cdx.json"
COMPONENTS = json.loads(LIST.read_text())["components"]
FILES = [(ROOT / file["name"], file["hashes"]) for one in COMPONENTS for file in one["components"]]


def tracked() -> list[Path]:
    """The repository's files; without git, those of the folders that are shipped."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.split("\0") if name]
    shipped = ("perfd", "collectors", "rules", "deploy")
    return [path for folder in shipped for path in (ROOT / folder).rglob("*") if path.is_file()]


def test_every_file_of_others_is_listed() -> None:
    """Code of others is in a folder `vendor`, and only there: minified code and fonts are nobody's source."""
    foreign = (".woff", ".woff2", ".ttf", ".otf", ".min.js", ".min.css", ".wasm", ".jar")
    found = [path for path in tracked() if "vendor" in path.parts or path.name.endswith(foreign)]
    assert sorted(path for path in found if path != LIST) == sorted(path for path, _ in FILES)


@pytest.mark.parametrize(("path", "hashes"), FILES, ids=lambda value: getattr(value, "name", ""))
def test_it_is_as_its_authors_made_it(path: Path, hashes: list[dict[str, str]]) -> None:
    assert hashes == [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component["name"])
def test_its_license_is_named_and_shipped(component: dict) -> None:  # type: ignore[type-arg]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert [one["license"]["id"] for one in component["licenses"]] == ["MIT"]
    texts = [file["name"] for file in component["components"] if "LICENSE" in file["name"]]
    assert texts
    assert set(texts) <= set(project["project"]["license-files"])
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["sbom-files"] == [str(LIST.relative_to(ROOT))]
    # The code itself says its version.
    code = next(ROOT / file["name"] for file in component["components"] if file["name"].endswith(".js"))
    assert f"(v{component['version']})" in code.read_text()[:200]
