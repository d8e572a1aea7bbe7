"""Everything that is installed from a registry is pinned, with its hashes, as pyproject.toml asks for it."""

import re
from pathlib import Path
from typing import Any

import pytest

from deploy.lock.make_lock import LOCKS, Lock, check, complaints, pins

ROOT = Path(__file__).parents[2]
LOCK = Lock(path="here.txt", project=True, extras=("more",), groups=("dev",))
PYPROJECT: dict[str, Any] = {
    "project": {"dependencies": ["grpcio>=1.73"], "optional-dependencies": {"more": ["cram_jam>=2"]}},
    "dependency-groups": {"dev": [{"include-group": "tools"}], "tools": ["ruff==0.17.5"]},
}
TEXT = """# via make lock
cram-jam==2.14.0 \\
    --hash=sha256:ab
    # via perfd (pyproject.toml)
grpcio==1.85.1 ; python_full_version < '3.12' \\
    --hash=sha256:cd
    # via
    #   perfd (pyproject.toml)
    #   wandb
ruff==0.17.5 \\
    --hash=sha256:ef
    # via perfd (pyproject.toml:dev)
six==1.17.0 \\
    --hash=sha256:01
    # via wandb
"""


def test_the_files_agree_with_what_perfd_asks_for() -> None:
    assert check() == []


def test_a_file_that_agrees_has_no_complaint() -> None:
    assert complaints(LOCK, TEXT, PYPROJECT) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("grpcio==1.85.1", "grpcio==1.70.0", "here.txt: grpcio>=1.73: has 1.70.0"),
        ("cram-jam==2.14.0", "cramjam==2.14.0", "here.txt: cram_jam>=2: missing"),
        ("    --hash=sha256:01\n", "", "here.txt: six: no hash"),
        ("# via wandb", "# via perfd (pyproject.toml:dev)", "here.txt: six: nothing needs it"),
        ("six==1.17.0", "six>=1.17.0", "here.txt: six: not pinned"),
        ("six==1.17.0 \\", "six @ https://example.org/six.whl \\", "here.txt: six: not pinned"),
    ],
)
def test_what_does_not_agree_is_named(old: str, new: str, said: str) -> None:
    assert old in TEXT
    assert said in complaints(LOCK, TEXT.replace(old, new), PYPROJECT)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: Path(lock.path).stem)
def test_a_lock_file_names_no_place_to_install_from(lock: Lock) -> None:
    """Where packages come from is the machine's setting; a mirror's name in here would be everybody's."""
    text = (ROOT / lock.path).read_text()
    assert len(list(pins(text))) > (0 if lock.groups == ("pip",) else 3)
    assert re.findall(r"^--.*|://.*", text, re.MULTILINE) == []


def test_continuous_integration_and_the_image_install_nothing_without_its_hash() -> None:
    for name in (".ci/run", "Makefile", "Dockerfile"):
        text = (ROOT / name).read_text().replace("\\\n", " ").replace("$(INSTALL)", "pip install")
        commands = [line for line in text.splitlines() if re.search(r"pip install|\$\(LOCKED\)", line)]
        assert commands, name
        for command in commands:
            allowed = ("--require-hashes", "$(LOCKED)", "--no-deps", "INSTALL :=")
            assert any(word in command for word in allowed), f"{name}: {command}"
