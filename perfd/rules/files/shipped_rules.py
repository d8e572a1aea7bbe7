"""The rules that ship with perfd."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from perfd.errors import RulesError


def builtin_rules() -> list[Path]:
    """The rules files that ship, in the order in which they are evaluated.

    An installed package holds them as data; in a checkout they are in the folder `rules`
    beside the package. Raises `RulesError` when there are none, as silence must not look like health.
    """
    package = Path(str(files("perfd")))
    for folder in (package / "data" / "rules", package.parent / "rules"):
        found = sorted(folder.glob("*.yaml"))
        if found:
            return found
    raise RulesError("The rules that ship with perfd are missing from this installation: install it again.")
