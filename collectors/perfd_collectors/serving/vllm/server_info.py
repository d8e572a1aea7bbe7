"""What a vLLM server says about itself over HTTP: its version, and the model's name."""

from __future__ import annotations

import json

from perfd.analysis.serving import ServerSetup

VERSION_PATH = "/version"
MODELS_PATH = "/v1/models"


def parse_version(body: bytes) -> ServerSetup | None:
    """The answer of `/version`; None when it is none."""
    said = _json(body)
    version = said.get("version") if isinstance(said, dict) else None
    return ServerSetup(version=version) if isinstance(version, str) else None


def parse_model(body: bytes) -> str | None:
    """The path or name of the model that `/v1/models` lists first."""
    said = _json(body)
    models = said.get("data") if isinstance(said, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    if not isinstance(first, dict):
        return None
    name = first.get("root") or first.get("id")
    return name if isinstance(name, str) else None


def _json(body: bytes) -> object:
    try:
        said: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return said
