"""TLS: the context of a client, and the certificates of a server, read again when they change."""

from __future__ import annotations

import logging
import os
import ssl
import threading

from perfd.config import TlsConfig
from perfd.errors import ConfigError

log = logging.getLogger(__name__)


def client_context(
    *,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    insecure: bool = False,
) -> ssl.SSLContext | None:
    """What a connection needs, or None when the system's own trust is enough.

    `ca` and the client's own `certificate` and `key` are PEM files. With `insecure` any certificate is
    taken: who listens in between can read and change all of it. Raises `ConfigError` that names the files.
    """
    if ca is None and certificate is None and key is None and not insecure:
        return None
    if (certificate is None) != (key is None):
        raise ConfigError("`certificate` and `key` belong together: name both files, or none.")
    if insecure and ca is not None:
        raise ConfigError("`insecure` trusts everyone and `ca` only some: choose one of them.")
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        named = ", ".join(name for name in (ca, certificate, key) if name)
        raise ConfigError(f"The certificates in {named} cannot be used: {error}.") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class ServerTls:
    """Gives each new connection its context, from any thread; raises `ConfigError` for unusable files.

    With a `ca`, clients have to show a certificate of it.
    """

    def __init__(self, tls: TlsConfig, *, key: str) -> None:
        if tls.certificate is None or tls.key is None:
            raise ConfigError(f"{key}: a server needs both `certificate` and `key`.")
        self._files = [path for path in (tls.certificate, tls.key, tls.ca) if path is not None]
        self._tls = tls
        self._key = key
        self._lock = threading.Lock()
        self._version = self._version_of_files()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context of the newest usable certificates."""
        with self._lock:
            version = self._version_of_files()
            if version != self._version:
                self._version = version
                try:
                    self._context = self._load()
                except ConfigError as error:
                    log.warning("New certificates cannot be used: %s The old ones stay.", error)
            return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(str(self._tls.certificate), self._tls.key)
            if self._tls.ca is not None:
                context.load_verify_locations(self._tls.ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            raise ConfigError(f"{self._key}: {', '.join(self._files)} cannot be used: {error}.") from error
        return context

    def _version_of_files(self) -> tuple[object, ...]:
        try:
            return tuple((status.st_mtime_ns, status.st_ino) for status in map(os.stat, self._files))
        except OSError:
            return ()
