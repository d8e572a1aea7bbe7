"""How a client of perfd's trusts a server."""

from __future__ import annotations

import ssl

from perfd.errors import ConfigError


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
