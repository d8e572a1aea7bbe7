"""Which team of the configuration a job belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from perfd.config import TeamConfig
from perfd.errors import ConfigError
from perfd.model import JOB_LABELS, OWNER_LABELS

Team = TypeVar("Team", bound=TeamConfig)
_LABELS = frozenset({*JOB_LABELS, *OWNER_LABELS})


def team_of(labels: Mapping[str, str], teams: Sequence[Team]) -> Team | None:
    """The first team whose patterns all match the labels of a job."""
    for team in teams:
        if all(fnmatchcase(labels.get(label, ""), pattern) for label, pattern in team.match.items()):
            return team
    return None


def check_teams(teams: Sequence[TeamConfig], *, key: str) -> None:
    """Raises `ConfigError` for a team that would match every job, or none."""
    for place, team in enumerate(teams):
        wrong = sorted(team.match.keys() - _LABELS)
        if wrong or not team.match:
            what = f"{wrong[0]!r} is not a label of a job" if wrong else "it is empty"
            raise ConfigError(f"{key}.teams[{place}].match: {what}; use {', '.join(sorted(_LABELS))}.")
