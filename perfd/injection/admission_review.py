"""Answers an AdmissionReview of the API server (admission.k8s.io/v1). A pod is always admitted."""

from __future__ import annotations

import base64
import logging
from typing import Any

import msgspec

from perfd.injection.sidecar_patch import Injection, patch_of

log = logging.getLogger(__name__)


class _Request(msgspec.Struct):
    uid: str
    object: dict[str, Any] = {}
    namespace: str = ""


class _Review(msgspec.Struct):
    request: _Request


_REVIEWS = msgspec.json.Decoder(_Review)
"""Created at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


def reviewed(body: bytes, injection: Injection) -> bytes:
    """The answer to a review: the pod is admitted, with perfd's agent where that is possible.

    Where it is not, whoever made the pod gets a warning, and perfd's log has the reason.
    Raises `ValueError` for another body.
    """
    try:
        request = _REVIEWS.decode(body).request
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"The body is not an AdmissionReview: {error}.") from error
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    try:
        patch = patch_of(request.object, injection)
    except Exception as error:
        # Whatever is odd about a pod, it starts.
        log.warning(
            "perfd's agent cannot be added to a pod.", extra={"namespace": request.namespace}, exc_info=True
        )
        response["warnings"] = [f"perfd's agent was not added: {type(error).__name__}"]
    else:
        if patch:
            response |= {
                "patchType": "JSONPatch",
                "patch": base64.b64encode(msgspec.json.encode(patch)).decode(),
            }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return msgspec.json.encode(review)
