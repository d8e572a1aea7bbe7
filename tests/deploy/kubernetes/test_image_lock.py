"""What the image is made of agrees with what perfd says that it needs."""

import re
import tomllib

from deploy.kubernetes.images import ROOT
from packaging.requirements import Requirement


def test_every_dependency_of_perfd_is_in_the_image_by_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = (ROOT / "deploy" / "image" / "requirements.txt").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([0-9.]+) \\$", locked, re.MULTILINE))
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["remote-write"]]:
        wanted = Requirement(requirement)
        has = pinned.get(wanted.name, "none")
        assert has in wanted.specifier, f"{requirement}: renew deploy/image/requirements.txt, which has {has}"
    blocks = re.split(r"^(?=[a-z])", locked, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pinned)
    assert all("--hash=sha256:" in block for block in blocks)
