"""Who may read and who may change something over HTTP: tokens with roles, and the names of the server."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import json
import logging
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from perfd.errors import ConfigError
from perfd.net.http import Handler, Request, Response, error_response, is_loopback, split_address

log = logging.getLogger(__name__)
_READING = frozenset({"GET", "HEAD"})
_CAPTURE_KEY = "http_token_file"
_READ_KEY = "http_read_token_file"
_PRIVATE_SUFFIXES = (".local", ".localhost", ".internal", ".lan", ".svc", ".cluster.local")
"""Names that no public DNS server gives out, so that no page can have them."""
Refused = Callable[[str, str], None]
"""Takes the reason of a refusal and the path."""


class BearerToken:
    """The token in a file, read at each question, so that a new one counts at once.

    Raises `ConfigError`, with the configuration's `key`, when the file holds none.
    """

    def __init__(self, path: str, *, key: str) -> None:
        self._path = path
        self._key = key
        self._read()

    def shown_in(self, authorization: str) -> bool:
        """Whether the value of an `Authorization` header shows it; raises `ConfigError` as at the start."""
        token = self._read()
        scheme, _, shown = authorization.partition(" ")
        # Compared in constant time, so that it cannot be guessed piece by piece.
        right = hmac.compare_digest(shown.strip().encode(errors="surrogateescape"), token)
        return scheme.lower() == "bearer" and right

    def _read(self) -> bytes:
        try:
            token = Path(self._path).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"{self._key}: cannot read {self._path}: {error.strerror or error}.") from error
        if not token or len(token.split()) != 1:
            raise ConfigError(f"{self._key}: {self._path} must contain one word, the token.")
        return token


class AccessControl:
    """Guards routes, from any thread. Raises `ConfigError` when a token's file cannot be used.

    With a `capture_token`, who changes something has to show it, as a bearer token or as the password of a
    browser's dialog; with a `read_token`, who reads has to show one of both. Without a capture token only
    this machine may change something, and no page that a browser here has open.

    A page can name itself so that it reaches this machine (DNS rebinding). So requests must name the server
    by an address, by its own name, by one of `hosts`, or, where it listens beyond loopback, by a name that
    no public DNS server gives out; on loopback as `localhost`.
    """

    def __init__(
        self,
        listen: str | None,
        *,
        capture_token: str | None = None,
        read_token: str | None = None,
        hosts: Collection[str] = (),
        refused: Refused = lambda _reason, _path: None,
    ) -> None:
        self._capture = None if capture_token is None else BearerToken(capture_token, key=_CAPTURE_KEY)
        self._read = None if read_token is None else BearerToken(read_token, key=_READ_KEY)
        self._listen = listen
        self._loopback = listen is not None and is_loopback(split_address(listen)[0])
        self._hosts = frozenset(host.lower() for host in hosts) | _own_names(listen)
        self._refused = refused

    def guard(
        self, routes: Mapping[str, Handler], *, open_to_all: Collection[str] = ()
    ) -> dict[str, Handler]:
        """The same routes, with requests refused unless they may; those of `open_to_all` need no token."""
        return {path: self._guarded(handler, path in open_to_all) for path, handler in routes.items()}

    def _guarded(self, handler: Handler, open_to_all: bool) -> Handler:
        def answer(request: Request) -> Response:
            reading = request.method in _READING
            refusal = self._wrong_host(request)
            if refusal is None and not (reading and open_to_all):
                refusal = self._may_not_read(request) if reading else self._may_not_change(request)
            if refusal is None:
                return handler(request)
            self._refused(_reason_of(refusal), request.path)
            return refusal

        return answer

    def _wrong_host(self, request: Request) -> Response | None:
        named = request.headers.get("host")
        if named is None:
            # No browser leaves it out.
            return None
        if self._shows_token(request):
            # A page that reached this server under its own name has no token for it.
            return None
        host = _host_of(named)
        public = "." in host and not host.endswith(_PRIVATE_SUFFIXES)
        known = host in self._hosts or is_loopback(host)
        if known or (not self._loopback and host and (_is_address(host) or not public)):
            return None
        return error_response(
            403,
            f"The name {host[:100]!r} is not allowed: add it to http_hosts, or use the server's address.",
        )

    def _shows_token(self, request: Request) -> bool:
        tokens = [token for token in (self._read, self._capture) if token is not None]
        return bool(tokens) and _check(tokens, request, "", "Bearer") is None

    def _may_not_read(self, request: Request) -> Response | None:
        if self._read is None:
            return None
        tokens = [token for token in (self._read, self._capture) if token is not None]
        # The dialog lets a person read the page; programs show a bearer token.
        return _check(tokens, request, f"Show the token of {_READ_KEY}.", 'Basic realm="perfd"')

    def _may_not_change(self, request: Request) -> Response | None:
        refusal = self._stranger(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if refusal is None and kind != "application/json":
            return error_response(415, "Send JSON, with Content-Type: application/json.")
        return refusal

    def _stranger(self, request: Request) -> Response | None:
        if self._capture is not None:
            sentence = (
                f"Send the bearer token that the aggregator's {_CAPTURE_KEY} holds; "
                "`perfd capture` has --token-file."
            )
            return _check([self._capture], request, sentence, "Bearer")
        if not self._loopback:
            return error_response(
                403,
                f"This aggregator listens on {self._listen}, which other machines may reach: "
                f"set {_CAPTURE_KEY} in its configuration, and whoever shows that token may do this.",
            )
        if not is_loopback(_host_of(request.headers.get("host", ""))):
            return error_response(
                403,
                f"Without {_CAPTURE_KEY} clients must call the aggregator 127.0.0.1, [::1] or localhost.",
            )
        return None


def _check(tokens: Collection[BearerToken], request: Request, sentence: str, scheme: str) -> Response | None:
    authorization = _as_bearer(request.headers.get("authorization", ""))
    try:
        shown = [token.shown_in(authorization) for token in tokens]
    except ConfigError as error:
        log.error("The token for HTTP cannot be read.", extra={"error": str(error)})  # noqa: TRY400  (the sentence says all)
        return error_response(503, "The aggregator cannot read its token; its log says why.")
    return None if any(shown) else error_response(401, sentence, {"WWW-Authenticate": scheme})


def _as_bearer(authorization: str) -> str:
    """The header as that of a bearer token, when it has the password of a browser's dialog."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        text = base64.b64decode(value, validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        return ""
    return f"Bearer {text.partition(':')[2]}"


def _own_names(listen: str | None) -> frozenset[str]:
    names = {socket.gethostname().lower()}
    if listen is not None:
        names.add(split_address(listen)[0].lower())
    return frozenset(names)


def _host_of(host: str) -> str:
    try:
        return (urlsplit("//" + host).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _reason_of(refusal: Response) -> str:
    reason: str = json.loads(refusal.body)["error"]
    return reason
