"""Service-account tokens of agents, which the Kubernetes API server reviews."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from perfd.aggregator.ingest.agent_credential import AgentCredential
from perfd.config import KubernetesIdentityConfig
from perfd.errors import ConfigError, PerfdError, RefusedError
from perfd.net import BoundedTlsConnection, client_context

_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
_TIMEOUT_S = 5.0
"""For a review by the API server; the agent tries again later. Chosen."""
_REMEMBERED_S = 60.0
"""For so long a token that was good is not reviewed again: agents that reconnect all at once."""
_MOST_REMEMBERED = 20_000
"""Reviewed tokens; more than the largest clusters have nodes."""
_MOST_BYTES = 16_384
"""A token has one to two thousand."""
_USER = "system:serviceaccount:"
_NODE_NAME = "authentication.kubernetes.io/node-name"


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: dict[str, Any] = {}
    audiences: list[str] = []


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


_REVIEWS = msgspec.json.Decoder(_Review)
"""Created at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


@dataclass(frozen=True, slots=True)
class _Known:
    credential: AgentCredential
    until_s: float


class TokenReviews:
    """Asks the API server, from any thread; raises `ConfigError` when its address or files cannot be used."""

    def __init__(
        self, config: KubernetesIdentityConfig, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        parts = urlsplit(config.api_server)
        if parts.scheme != "https" or not parts.hostname:
            raise ConfigError("agent_identity.kubernetes.api_server: it must be an https address.")
        context = client_context(ca=config.ca)
        if context is None:
            raise ConfigError("agent_identity.kubernetes.ca: it must name the API server's certificates.")
        self._address = (parts.hostname, parts.port or 443)
        self._context = context
        self._config = config
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._known: dict[bytes, _Known] = {}

    def remembered(self, token: str) -> AgentCredential | None:
        """What a token shows, if it was reviewed lately; raises `RefusedError` for what cannot be one."""
        if not token.isascii() or len(token) > _MOST_BYTES or len(token.split()) != 1:
            raise RefusedError("The agent's token is not a service-account token.")
        now_s = self._monotonic_s()
        with self._lock:
            known = self._known.get(_key(token))
        return known.credential if known is not None and now_s < known.until_s else None

    def credential(self, token: str) -> AgentCredential:
        """What a token shows; raises `RefusedError` for a bad one, `PerfdError` without an answer."""
        if (known := self.remembered(token)) is not None:
            return known
        key, now_s = _key(token), self._monotonic_s()
        credential = credential_of_review(self._ask(token), self._config.audience, self._config.any_namespace)
        with self._lock:
            self._known = {one: kept for one, kept in self._known.items() if now_s < kept.until_s}
            if len(self._known) < _MOST_REMEMBERED:
                self._known[key] = _Known(credential, now_s + _REMEMBERED_S)
        return credential

    def _ask(self, token: str) -> bytes:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._config.audience]},
        }
        connection = BoundedTlsConnection(*self._address, context=self._context)
        connection.deadline_s = time.monotonic() + _TIMEOUT_S
        try:
            own = Path(self._config.token_file).read_text(encoding="ascii").strip()
            headers = {"Authorization": f"Bearer {own}", "Content-Type": "application/json"}
            connection.request("POST", _PATH, msgspec.json.encode(body), headers)
            answer = connection.getresponse()
            content = answer.read(1 << 20)
        except (OSError, ValueError) as error:
            raise PerfdError(f"The Kubernetes API server does not review tokens: {error}.") from error
        finally:
            connection.close()
        if answer.status not in {200, 201}:
            raise PerfdError(
                f"The Kubernetes API server answers a token review with status {answer.status}: "
                "the aggregator's service account needs the ClusterRole system:auth-delegator."
            )
        return content


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def credential_of_review(content: bytes, audience: str, any_namespace: Collection[str]) -> AgentCredential:
    """What a TokenReview of the API server says; raises `RefusedError` when the token is not good.

    The agent may be the node that its pod is on, where the API server reports it (1.30 and later), and any
    node otherwise; it may report jobs of its namespace, or with a service account in `any_namespace`
    (`NAMESPACE/NAME`) of all.
    """
    try:
        status = _REVIEWS.decode(content).status
    except msgspec.DecodeError as error:
        raise RefusedError("The API server's review of the agent's token cannot be read.") from error
    name = str(status.user.get("username", ""))
    namespace, _, account = name.removeprefix(_USER).partition(":")
    # An API server that knows no audiences leaves them out; then the token may be meant for anyone.
    if not status.authenticated or audience not in status.audiences:
        raise RefusedError("The Kubernetes API server does not accept the agent's token.")
    if not name.startswith(_USER) or not namespace or not account:
        raise RefusedError("The agent's token is not that of a service account.")
    extra = status.user.get("extra")
    nodes = extra.get(_NODE_NAME) if isinstance(extra, dict) else None
    everywhere = f"{namespace}/{account}" in any_namespace
    return AgentCredential(
        principal=name,
        nodes=frozenset(map(str, nodes)) if isinstance(nodes, list) and nodes else None,
        namespace=None if everywhere else namespace,
    )
