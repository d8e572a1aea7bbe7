"""Which role a client has over HTTP, by the tokens of the aggregator's API."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from perfd.errors import PerfdError
from perfd.net import is_loopback, split_address
from perfd.net.access_control import BearerToken


class Role(StrEnum):
    """What a client may do."""

    READ = "read"
    CAPTURE = "capture"
    """This, and read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """The tokens that clients show; those of the API's configuration."""

    read: BearerToken | None = None
    """None: whoever reaches the server may read."""
    capture: BearerToken | None = None
    """None: no client may start a capture."""

    def role_of(self, authorization: str) -> Role | None:
        """The role that an `Authorization` header gives; None for none. Raises `ConfigError`."""
        if self.capture is not None and self.capture.shown_in(authorization):
            return Role.CAPTURE
        if self.read is None or self.read.shown_in(authorization):
            return Role.READ
        return None


def allowed_hosts(listen: str, access: HttpAccess) -> list[str] | None:
    """Names by which clients may call a server, so that no page of a browser reaches it under its own.

    None: any, because all clients show a token. Raises `PerfdError` for an address beyond loopback without
    a token for reading.
    """
    host = split_address(listen)[0]
    if is_loopback(host):
        names = dict.fromkeys(("127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host))
        return [form for name in names for form in (name, f"{name}:*")]
    if access.read is None:
        raise PerfdError(
            f"{listen} is not loopback: other machines may reach it, so give --read-token-file,"
            " or listen on 127.0.0.1."
        )
    return None
