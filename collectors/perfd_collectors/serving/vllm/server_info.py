"""A vLLM server's version and model over HTTP."""

from __future__ import annotations

import json

from perfd.analysis.serving import ServerSetup

VERSION_PATH = "/version"
MODELS_PATH = "/v1/models"


def parse_version(body: bytes) -> ServerSetup | None:
    """The version in a response of `/version`; None when it is invalid."""
    answer = _json(body)
    version = answer.get("version") if isinstance(answer, dict) else None
    return ServerSetup(version=version) if isinstance(version, str) else None


def parse_model(body: bytes) -> str | None:
    """Path or name of the first model in a response of `/v1/models`; None when it is invalid."""
    answer = _json(body)
    models = answer.get("data") if isinstance(answer, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    if not isinstance(first, dict):
        return None
    name = first.get("root") or first.get("id")
    return name if isinstance(name, str) else None


def _json(body: bytes) -> object:
    try:
        answer: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer
