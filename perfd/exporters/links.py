"""Links of exported alerts to the aggregator's pages."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from perfd.errors import ConfigError


def check_external_url(url: str | None, *, key: str) -> None:
    """Raises `ConfigError` unless it is an http or https URL."""
    if url is None:
        return
    parts = urlsplit(url)
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or not (url.isascii() and url.isprintable())
    ):
        raise ConfigError(f"{key}.external_url: it must be an http or https URL.")


def job_page(external_url: str | None, job: str) -> str | None:
    """The address of a job's page, that of the aggregator without a job; None without an external URL."""
    if external_url is None:
        return None
    base = external_url.rstrip("/")
    return f"{base}/jobs/{quote(job, safe='', errors='replace')}" if job else base


def job_picture(external_url: str | None, job: str) -> str | None:
    """The URL of the picture of what limits a job; None without an external URL or a job."""
    if external_url is None or not job:
        return None
    return f"{external_url.rstrip('/')}/reports/pictures/{quote(job, safe='', errors='replace')}.png"


def complete_runbook(annotations: Mapping[str, str], external_url: str | None) -> dict[str, str]:
    """The annotations; the path of a shipped rule's runbook has the aggregator's address before it."""
    path = annotations.get("runbook_url", "")
    if external_url is None or not path.startswith("/"):
        return dict(annotations)
    return {**annotations, "runbook_url": external_url.rstrip("/") + path}
