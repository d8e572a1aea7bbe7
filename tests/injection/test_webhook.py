"""`perfd webhook`, as the API server calls it."""

from __future__ import annotations

import json

import pytest
from injection.test_sidecar_patch import INJECTION, a_pod

from perfd.cli.commands.webhook import routes
from perfd.net import Request


def post(path: str, body: bytes) -> tuple[int, bytes]:
    answer = routes(INJECTION)[path](Request(method="POST", path=path, rest="", query={}, body=body))
    return answer.status, answer.body


def test_a_review_is_answered() -> None:
    status, body = post("/mutate", json.dumps({"request": {"uid": "u", "object": a_pod()}}).encode())
    response = json.loads(body)["response"]
    assert (status, response["uid"], response["allowed"]) == (200, "u", True)


@pytest.mark.parametrize("body", [b"", b"no JSON", b"{}"])
def test_anything_else_is_refused(body: bytes) -> None:
    status, said = post("/mutate", body)
    assert (status, b"not an AdmissionReview" in said) == (400, True)


def test_it_says_that_it_is_alive() -> None:
    assert post("/healthz", b"")[0] == 200
