"""What an agent's credential says of it: which nodes it may be, and of which jobs it may speak."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_NODE_SEGMENT = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCredential:
    """Who an agent is, by its credential."""

    principal: str = ""
    """The name in the credential; empty without one."""
    nodes: frozenset[str] | None = None
    """The nodes that it may be; None: any."""
    namespace: str | None = None
    """The Kubernetes namespace of whose jobs it may speak; None: any."""

    def may_be(self, node: str) -> bool:
        """Whether an agent with this credential may call itself `node`."""
        return self.nodes is None or node in self.nodes


ANYBODY = AgentCredential()
"""An agent that shows nothing, where that is allowed."""


def credential_of_certificate(
    properties: Mapping[str, Iterable[bytes]], any_node: Collection[str] = ()
) -> AgentCredential | None:
    """The credential in gRPC's authentication context of a peer; None when its certificate names nothing.

    A DNS name stands for the node of that name, in full or up to the first dot, and a URI
    (`spiffe://DOMAIN/.../node/NAME`) for the node in its last part. The common name counts only in a
    certificate without either. Names in `any_node` may be every node; `*` there stands for all names.
    """
    uris = _texts(properties, "peer_uri") or _texts(properties, "peer_spiffe_id")
    names = _texts(properties, "peer_dns")
    if not uris and not names:
        names = _texts(properties, "x509_common_name")
    if not uris and not names:
        return None
    principal = (uris or names)[0]
    if "*" in any_node or any(name in any_node for name in (*uris, *names)):
        return AgentCredential(principal=principal)
    nodes = {node for uri in uris if (node := _node_of_uri(uri))}
    for name in names:
        nodes |= {name, name.partition(".")[0]}
    return AgentCredential(principal=principal, nodes=frozenset(nodes))


def _node_of_uri(uri: str) -> str:
    try:
        parts = urlsplit(uri).path.strip("/").split("/")
    except ValueError:
        return ""
    return parts[-1] if len(parts) > 1 and parts[-2] == _NODE_SEGMENT else ""


def _texts(properties: Mapping[str, Iterable[bytes]], key: str) -> list[str]:
    return [value.decode("utf-8", "replace") for value in properties.get(key, ())]
