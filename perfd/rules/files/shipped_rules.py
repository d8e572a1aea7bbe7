"""The rules that ship with perfd."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from perfd.errors import RulesError


def builtin_rules() -> list[Path]:
    """The shipped rules files, in the order in which they are evaluated.

    An installed package has them as data; in a checkout they are in the folder `rules` next
    to the package. Raises `RulesError` if there are none, because silence must not look like health.
    """
    package = Path(str(files("perfd")))
    for folder in (package / "data" / "rules", package.parent / "rules"):
        found = sorted(folder.glob("*.yaml"))
        if found:
            return found
    raise RulesError("perfd's rules are missing from this installation: reinstall it.")
