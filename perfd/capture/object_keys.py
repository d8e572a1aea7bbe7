"""Where files of captures are in object storage, below the configured URL.

    CLUSTER/NAMESPACE/JOB/ATTEMPT/CAPTURE/RANKS/node=NODE/FILE
    CLUSTER/NAMESPACE/JOB/ATTEMPT/CAPTURE/report/FILE

No part but that of the node contains `=`, so that a policy can permit a node `CLUSTER/*/node=NODE/*` and
nothing else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from perfd.capture.selection import check_capture_id, slug
from perfd.errors import CaptureError

UNKNOWN_FOLDER = "unknown/unknown/unknown/0"
"""For requests of an aggregator that names none."""
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_RANKS = re.compile(r"node|rank-\d{1,9}|ranks-\d{1,9}-\d{1,9}")
_REPORT = "report"
_DIGEST_DIGITS = 8
"""32 bits: distinguishes texts that have one slug, of the few captures of one job."""
_SLUG_CHARACTERS = 64
"""How much of a name is kept in a key; S3 limits keys to 1,024 bytes."""


def job_folder(cluster: str, namespace: str, job: str, attempt: int) -> str:
    """The folder of an attempt; what is unknown is `unknown`."""
    return "/".join((*(_part(name or "unknown") for name in (cluster, namespace, job)), str(attempt)))


def check_folder(folder: str) -> str:
    """A folder from `job_folder`, or `UNKNOWN_FOLDER` for none; raises `CaptureError` for anything else."""
    parts = folder.split("/")
    if folder and (len(parts) != 4 or not all(map(_is_part, parts))):
        raise CaptureError(f"{folder[:120]!r} is not CLUSTER/NAMESPACE/JOB/ATTEMPT.")
    return folder or UNKNOWN_FOLDER


def file_key(folder: str, capture_id: str, ranks: Sequence[int], node: str, name: str) -> str:
    """The key of a file with these ranks; raises `CaptureError` for names that could leave the folder."""
    return "/".join(
        (
            check_folder(folder),
            check_capture_id(capture_id),
            _ranks(ranks),
            f"node={_part(node)}",
            _part(name),
        )
    )


def report_key(folder: str, capture_id: str, name: str) -> str:
    """The key of a report of a capture; raises as `file_key` does."""
    return "/".join((check_folder(folder), check_capture_id(capture_id), _REPORT, _part(name)))


def is_of_node(key: str, folder: str, capture_id: str, node: str) -> bool:
    """Whether `file_key` can have returned a key for this node and capture."""
    root, _, rest = key.partition(f"/{capture_id}/")
    parts = rest.split("/")
    return (
        root == (folder or UNKNOWN_FOLDER)
        and len(parts) == 3
        and _RANKS.fullmatch(parts[0]) is not None
        and parts[1] == f"node={_part(node)}"
        and _is_part(parts[2])
    )


def _is_part(text: str) -> bool:
    return _PART.fullmatch(text) is not None and ".." not in text


def _part(text: str) -> str:
    """`text` as one part of a key; different texts stay different."""
    if _is_part(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:_DIGEST_DIGITS]
    return f"{slug(text)[:_SLUG_CHARACTERS]}-{digest}"


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "node"
    return f"rank-{ranks[0]}" if len(ranks) == 1 else f"ranks-{min(ranks)}-{max(ranks)}"
