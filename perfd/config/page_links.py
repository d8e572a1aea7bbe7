"""Links that a site adds to the page: to its dashboards, experiment tracker, logs and machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from perfd.config.unknown_keys import Strict
from perfd.errors import ConfigError

_WANDB = frozenset({"wandb_entity", "wandb_project", "wandb_run"})
_JOB = _WANDB | {"job", "cluster", "namespace", "owner", "title", "from", "to"}
_PLACEHOLDERS: Mapping[str, frozenset[str]] = {
    "job": _JOB,
    "rank": _JOB | {"rank", "node", "gpu"},
    "node": frozenset({"node"}),
    "log": _JOB | {"rank"},
}
"""What is known where a link stands."""
_PLACEHOLDER = re.compile(r"\{(\w*)\}")


class PageLinksConfig(Strict, frozen=True):
    """URLs by their name on the page, with placeholders for what is shown: `https://HOST/...?job={job}`."""

    job: dict[str, str] = {}
    """On a job's page. Placeholders: `job`, `cluster`, `namespace`, `owner`, `title` (the scheduler's name),
    `from` and `to`: its start and end, in ms since 1970; `to` is `now` while it runs. `wandb_entity`,
    `wandb_project` and `wandb_run`: the job's run of W&B, as its output or its run file names it."""
    rank: dict[str, str] = {}
    """On a rank's page: those, `rank`, `node` and `gpu` (the index)."""
    node: dict[str, str] = {}
    """Beside the name of a node: `node`."""
    log: dict[str, str] = {}
    """Beside an error or a warning: those of `job`, where `from` and `to` are a minute before and after it,
    and `rank`."""


def check_page_links(links: PageLinksConfig) -> None:
    """Raises `ConfigError` for a URL that is none, or a placeholder that is unknown where the link stands."""
    for place, known in _PLACEHOLDERS.items():
        for name, url in getattr(links, place).items():
            key = f"links.{place}.{name}"
            left = _PLACEHOLDER.sub("", url)
            # A name from a job must not choose the host.
            parts = urlsplit(_PLACEHOLDER.sub("{", url))
            if (
                parts.scheme not in {"http", "https"}
                or not parts.hostname
                or "{" in parts.netloc
                or not (url.isascii() and url.isprintable())
                or " " in url
            ):
                raise ConfigError(f"{key}: it must be an http or https URL without placeholders in its host.")
            if set(left) & {"{", "}"}:
                raise ConfigError(f"{key}: write braces that are part of the URL as %7B and %7D.")
            for unknown in sorted(set(_PLACEHOLDER.findall(url)) - known):
                names = ", ".join(sorted(known))
                raise ConfigError(f"{key}: {{{unknown}}} is not known here; there are {names}.")
