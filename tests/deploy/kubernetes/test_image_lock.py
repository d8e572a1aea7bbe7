"""What the image is made of agrees with what perfd says that it needs."""

import re
import tomllib

import pytest
from deploy.kubernetes.images import ROOT
from packaging.requirements import Requirement


@pytest.mark.parametrize(
    ("name", "extras"),
    [("requirements.txt", ["remote-write"]), ("requirements-wandb.txt", ["remote-write", "wandb"])],
)
def test_every_dependency_of_perfd_is_in_the_image_by_hash(name: str, extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = (ROOT / "deploy" / "image" / name).read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([0-9.a-z]+) \\$", locked, re.MULTILINE))
    of_extras = [one for extra in extras for one in project["optional-dependencies"][extra]]
    for requirement in [*project["dependencies"], *of_extras]:
        wanted = Requirement(requirement)
        has = pinned.get(wanted.name, "none")
        assert has in wanted.specifier, f"{requirement}: renew deploy/image/{name}, which has {has}"
    blocks = re.split(r"^(?=[a-z])", locked, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pinned)
    assert all("--hash=sha256:" in block for block in blocks)
