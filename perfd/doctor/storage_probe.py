"""Probes object storage as an agent and an aggregator use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from perfd.capture.object_keys import file_key, job_folder, report_key
from perfd.config import ObjectStorageConfig
from perfd.doctor.node_facts import StorageFacts
from perfd.errors import PerfdError
from perfd.net import ObjectStorage

_NAME = "doctor"
_CONTENT = b"perfd doctor wrote this.\n"
_TIMEOUT_S = 10.0
"""For a small file. Chosen, not measured."""


def probe_upload(
    config: ObjectStorageConfig | None, node: str, environment: Mapping[str, str]
) -> StorageFacts | None:
    """Whether an agent of this node may store a file; None if it is not configured to."""
    if config is None:
        return None
    cluster = environment.get("PERFD_CLUSTER") or environment.get("SLURM_CLUSTER_NAME") or ""
    key = file_key(job_folder(cluster, "", _NAME, 0), _NAME, (), node, _NAME)
    return _probe(config, "capture.object_storage", key, read=False)


def probe_reports(config: ObjectStorageConfig | None) -> StorageFacts | None:
    """Whether the aggregator may store and read a report; None if it is not configured to."""
    if config is None:
        return None
    return _probe(config, "object_storage", report_key(job_folder("", "", _NAME, 0), _NAME, _NAME), read=True)


def _probe(config: ObjectStorageConfig, option: str, key: str, *, read: bool) -> StorageFacts:
    hasty = msgspec.structs.replace(config, timeout_s=min(config.timeout_s, _TIMEOUT_S))
    try:
        storage = ObjectStorage(hasty, key=option)
        with TemporaryDirectory(prefix="perfd-doctor-") as folder:
            file = Path(folder) / _NAME
            file.write_bytes(_CONTENT)
            storage.put(key, file)
        if read and storage.read(key, len(_CONTENT)) != _CONTENT:
            return StorageFacts(url=storage.url_of(key), problem="it returned other data than was stored.")
    except (PerfdError, OSError) as error:
        return StorageFacts(url=config.url, problem=str(error))
    return StorageFacts(url=storage.url_of(key))
