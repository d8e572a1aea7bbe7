"""A page for each alert: what it means, what to do, and when it fires; `runbook_url` leads there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from urllib.parse import quote, unquote

from perfd.aggregator.web_api.html_pages import html_document, html_response, message_page
from perfd.net import Handler, Response
from perfd.rules import AlertingRule, RuleSet
from perfd.rules.durations import format_duration
from perfd.rules.templates import Template

PATH = "/runbooks/"
_LABEL = re.compile(r"\{\{ ?\$labels\.(\w+) ?\}\}")
_VALUE = re.compile(r"\{\{ ?\$value[^{}$]*\}\}")


def runbook_routes(rules: RuleSet) -> dict[str, Handler]:
    """`/runbooks/ALERT` for each alert that is evaluated, and `/runbooks/` with all of them."""
    found: dict[str, list[AlertingRule]] = {}
    for group in rules.groups:
        for rule in group.rules:
            if isinstance(rule, AlertingRule):
                found.setdefault(rule.alert, []).append(rule)

    def page(name: str) -> Response:
        if not name:
            links = [f'<a href="{quote(one, safe="")}">{escape(one)}</a>' for one in sorted(found)]
            return html_response(html_document("Alerts", links))
        if name not in found:
            return message_page(404, "No such alert", f"No rule here raises {name!r}; {PATH} lists all.")
        paragraphs = [one for rule in found[name] for one in _paragraphs(rule)]
        return html_response(html_document(name, paragraphs))

    return {PATH: lambda request: page(unquote(request.rest))}


def _paragraphs(rule: AlertingRule) -> Iterator[str]:
    for name in ("summary", "description"):
        if name in rule.annotations:
            yield escape(_words(rule.annotations[name]))
    yield f"It fires when this holds{_how_long(rule)}: <code>{escape(rule.expression.strip())}</code>"
    labels = ", ".join(f"{name} {_words(text)}" for name, text in sorted(rule.labels.items()))
    if labels:
        yield f"Labels: {escape(labels)}."


def _how_long(rule: AlertingRule) -> str:
    return f" for {format_duration(round(rule.for_s * 1000))}" if rule.for_s else ""


def _words(template: Template) -> str:
    """A template as words: a label as its name in capitals, a value as VALUE."""
    return _VALUE.sub("VALUE", _LABEL.sub(lambda found: found[1].upper(), template.text))
