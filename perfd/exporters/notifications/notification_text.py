"""What a notification says: as text, for Slack, and as a document of schema perfd.notification/1. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.findings import Finding, finding_json
from perfd.exporters.links import complete_runbook, job_page, job_picture
from perfd.exporters.notifications.notification_groups import Notification
from perfd.exporters.notifications.notification_sender import OutgoingMessage
from perfd.formatting import percent, printable_text
from perfd.model import Alert, alert_json
from perfd.report.render.finding_png import finding_picture

SCHEMA = "perfd.notification/1"
MOST_ALERTS = 20
"""Alerts in one message; it says how many more there are."""
_MOST_FINDINGS = 5
"""Most findings in a message, which people often read on a phone."""
_MOST_EVIDENCE = 5
"""Most sentences below the first finding, for the same reason."""
_NAME_CHARS = 120
"""Longest name of a job or server in a message; longer ones are cut."""
_SENTENCE_CHARS = 1_000
"""Of a finding, which names ranks and hosts: longer ones are cut. Chosen."""
_TITLE_CHARS = 200
"""Of a subject or headline: longer ones are cut. Chosen."""
_SLACK_CHARS = 3_500
"""Slack asks for texts of at most 4,000 characters; escapes make some longer."""
_SEVERITIES = ("critical", "warning", "info")


def one_line(text: str, most_chars: int = _SENTENCE_CHARS) -> str:
    """The text without line breaks and control characters, and not longer than this."""
    # Cut first: 10 MB need not be looked through for a name.
    flat = " ".join(text[: 4 * most_chars].split())
    plain = printable_text(flat)
    return plain if len(plain) <= most_chars else plain[: most_chars - 1] + "…"


def title(notification: Notification) -> str:
    """What it is about, in one line: `2 alerts: job llm: Rank 5 of llm is a straggler`."""
    firing = sum(alert.firing for alert in notification.alerts)
    if not firing:
        count = "Resolved"
    elif notification.repeated:
        count = "Still firing" if firing == 1 else f"{firing} alerts still firing"
    else:
        count = "Alert" if firing == 1 else f"{firing} alerts"
    first = _by_severity(notification)[0]
    return one_line(f"{count}: {_about(notification)}: {_summary(first)}", _TITLE_CHARS)


def body(message: OutgoingMessage) -> str:
    """All that it says, as lines of plain text."""
    alerts = _by_severity(message.notification)
    lines: list[str] = []
    for alert in alerts[:MOST_ALERTS]:
        lines += [*_alert_lines(alert, message.external_url), ""]
    if len(alerts) > MOST_ALERTS:
        lines += [f"{len(alerts) - MOST_ALERTS} more alerts are left out.", ""]
    if message.summary is not None:
        lines += [*_finding_lines(message.summary), ""]
    if (page := _page(message)) is not None:
        lines += [f"Page: {page}", ""]
    return "\n".join(lines).rstrip() + "\n"


def slack(message: OutgoingMessage) -> dict[str, Any]:
    """The message as incoming webhooks of Slack, Mattermost and Rocket.Chat accept it."""
    text = body(message)
    if len(text) > _SLACK_CHARS:
        page = _page(message)
        text = text[:_SLACK_CHARS].rstrip() + "…\n" + (f"\nPage: {page}\n" if page else "")
    posted: dict[str, Any] = {"text": f"*{_escaped(title(message.notification))}*\n{_escaped(text)}"}
    picture = None if message.summary is None else finding_picture(message.summary)
    url = job_picture(message.external_url, message.notification.group.job)
    if picture is not None and url is not None:
        caption = _escaped(one_line(picture.caption))
        # Webhooks accept no uploads: Slack fetches the URL, so it must be public.
        posted["attachments"] = [{"fallback": caption, "text": caption, "image_url": url}]
    return posted


def document(message: OutgoingMessage, *, receiver: str) -> dict[str, Any]:
    """The message as an object of schema perfd.notification/1."""
    notification, summary, external_url = message.notification, message.summary, message.external_url
    alerts, group = _by_severity(notification), notification.group
    new = {alert.identity for alert in notification.new}
    return {
        "schema": SCHEMA,
        "id": notification_id(notification),
        "receiver": receiver,
        "time_unix_s": message.time_unix_s,
        "status": "firing" if any(alert.firing for alert in alerts) else "resolved",
        "repeated": notification.repeated,
        "cluster": _name(group.cluster),
        "namespace": _name(group.namespace),
        "job": _name(group.job),
        "server": _name(group.server),
        "title": title(notification),
        "text": body(message),
        "url": _page(message),
        "picture_url": _picture_url(summary, group.job, external_url),
        "alerts": [
            _alert_document(alert, external_url) | {"new": alert.identity in new}
            for alert in alerts[:MOST_ALERTS]
        ],
        "alerts_left_out": max(0, len(alerts) - MOST_ALERTS),
        "findings": [] if summary is None else [_bounded(finding_json(one)) for one in _findings(summary)],
    }


def group_id(notification: Notification) -> str:
    """The same for all messages about one job, by which a mail reader makes a thread of them."""
    return _hash(notification.group)


def notification_id(notification: Notification) -> str:
    """The same for each attempt to send a message; a repeat of it later has another."""
    changed = [(alert.identity, alert.state, alert.began_unix_s) for alert in notification.alerts]
    return _hash((notification.group, changed, notification.previous_unix_s))


def _hash(value: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest()[:32]


def _by_severity(notification: Notification) -> Sequence[Alert]:
    new = {alert.identity for alert in notification.new}
    return sorted(
        notification.alerts,
        key=lambda alert: (not alert.firing, alert.identity not in new, _severity_rank(alert)),
    )


def _severity_rank(alert: Alert) -> int:
    severity = alert.labels.get("severity", "")
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)


def _about(notification: Notification) -> str:
    group = notification.group
    if group.server:
        return f"server {one_line(group.server, _NAME_CHARS)}"
    return f"job {one_line(group.job, _NAME_CHARS)}" if group.job else "perfd"


def _page(message: OutgoingMessage) -> str | None:
    group = message.notification.group
    if message.external_url is not None and group.server:
        return message.external_url.rstrip("/") + "/servers"
    return job_page(message.external_url, group.job)


def _picture_url(summary: JobSummary | None, job: str, external_url: str | None) -> str | None:
    drawn = summary is not None and finding_picture(summary) is not None
    return job_picture(external_url, job) if drawn else None


def _summary(alert: Alert) -> str:
    return one_line(alert.annotations.get("summary") or alert.name)


def _alert_lines(alert: Alert, external_url: str | None) -> list[str]:
    severity = one_line(alert.labels.get("severity", "alert"), _NAME_CHARS)
    what = severity.upper() if alert.firing else "RESOLVED"
    lines = [f"{what}: {_summary(alert)}"]
    if not alert.firing:
        since, until = _time(alert.began_unix_s), _time(alert.resolved_at_unix_s)
        return [*lines, f"It fired from {since} to {until}."]
    if description := alert.annotations.get("description"):
        lines.append(one_line(description))
    step = "" if alert.first_step is None else f", step {alert.first_step}"
    lines.append(f"Since {_time(alert.began_unix_s)}{step}.")
    if runbook := complete_runbook(alert.annotations, external_url).get("runbook_url"):
        lines.append(f"Runbook: {one_line(runbook)}")
    return lines


def _findings(summary: JobSummary) -> list[Finding]:
    return [summary.bottleneck, *summary.others][:_MOST_FINDINGS]


def _finding_lines(summary: JobSummary) -> list[str]:
    first, *others = _findings(summary)
    lines = [f"What limits the job: {one_line(first.headline)}."]
    if first.gain_ratio is not None:
        lines.append(f"Gain without it: at most {percent(first.gain_ratio)} of a step.")
    lines += [f"- {one_line(sentence)}" for sentence in first.evidence[:_MOST_EVIDENCE]]
    if first.advice:
        lines.append(f"Advice: {one_line(first.advice)}")
    if others:
        lines += ["", "Also:"]
        for one in others:
            gain = "" if one.gain_ratio is None else f", {percent(one.gain_ratio)} of a step"
            lines.append(f"- {one_line(one.headline)}{gain}")
    return lines


def _time(unix_s: float | None) -> str:
    if unix_s is None or not math.isfinite(unix_s):
        return "an unknown time"
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def _alert_document(alert: Alert, external_url: str | None) -> dict[str, Any]:
    plain = alert_json(alert)
    plain["annotations"] = complete_runbook(alert.annotations, external_url)
    return _bounded(plain)


def _bounded(value: Mapping[str, Any]) -> dict[str, Any]:
    return {_cut(name): _bounded_value(one) for name, one in value.items()}


def _bounded_value(value: Any) -> Any:  # noqa: ANN401  (whatever JSON holds)
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, Mapping):
        return _bounded(value)
    if isinstance(value, (list, tuple)):
        return [_bounded_value(one) for one in value]
    return value


def _name(text: str) -> str | None:
    return _cut(text) if text else None


def _cut(text: str) -> str:
    return text if len(text) <= _SENTENCE_CHARS else text[: _SENTENCE_CHARS - 1] + "…"


def _escaped(text: str) -> str:
    # https://docs.slack.dev/messaging/formatting-message-text: these three have a meaning. Mattermost and
    # Rocket.Chat also read `@all` and Markdown's links, which a job's name must not be able to make.
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"@|\](?=[(\[])", lambda sign: sign[0] + "\N{ZERO WIDTH SPACE}", text)
