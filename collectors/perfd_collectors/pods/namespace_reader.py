"""Labels and annotations of the namespaces whose pods are on this node, from the API server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from perfd_collectors.pods.object_reader import ObjectReader

log = logging.getLogger(__name__)


class NamespaceKey(NamedTuple):
    """Which namespace."""

    namespace: str


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """A namespace; empty where the API server refuses."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class _Metadata(msgspec.Struct):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Namespace(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_DECODER = msgspec.json.Decoder(_Namespace)


class NamespaceReader(ObjectReader[NamespaceKey, NamespaceFacts]):
    """Asks for each namespace that is wanted, and again every minute. Chosen, not measured."""

    refresh_s = 60.0

    def _read(self, key: NamespaceKey) -> NamespaceFacts:
        found = _DECODER.decode(self._get(f"/api/v1/namespaces/{quote(key.namespace, safe='')}")).metadata
        return NamespaceFacts(found.labels, found.annotations)

    def _unknown(self, key: NamespaceKey, problem: str, *, new: bool) -> NamespaceFacts:
        if new:
            log.warning("A namespace cannot be read: owners and labels of it are unknown.",
                        extra={"namespace": key.namespace, "reason": problem})  # fmt: skip
        return NamespaceFacts()
