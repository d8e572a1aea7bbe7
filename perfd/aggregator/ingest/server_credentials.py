"""The certificates with which agents are served, read again when the files change."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from perfd.config import TlsConfig
from perfd.errors import ConfigError

log = logging.getLogger(__name__)


class ServerCertificates:
    """The certificate that agents are shown, read again when its files change.

    Raises `ConfigError` when these cannot be used at the start; later the last good ones stay.
    """

    def __init__(self, tls: TlsConfig) -> None:
        if tls.certificate is None or tls.key is None:
            raise ConfigError("tls: the aggregator needs both `certificate` and `key`.")
        self._certificate, self._key, self._ca = tls.certificate, tls.key, tls.ca
        self._served = self._read()
        self._complained = False

    def credentials(self) -> grpc.ServerCredentials:
        """What gRPC needs to listen; with a `ca` each client has to show a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(*self._served),
            self._renewed,  # type: ignore[arg-type]  # None is "as before", which the stubs lack.
            require_client_authentication=self._ca is not None,
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration when the files have changed; gRPC asks before each handshake."""
        try:
            found = self._read()
            if found == self._served:
                return None
            configuration = _configuration(*found)
        except Exception as error:  # noqa: BLE001  (gRPC's thread must go on, with what it has)
            if not self._complained:
                log.error(  # noqa: TRY400  (where it was raised does not help)
                    "The new certificates cannot be used: the old ones stay.", extra={"error": str(error)}
                )
            self._complained = True
            return None
        self._served, self._complained = found, False
        log.info("The certificates for agents were read again.", extra={"path": self._certificate})
        return configuration

    def _read(self) -> tuple[bytes, bytes, bytes | None]:
        return (
            _content(self._key, "tls.key"),
            _content(self._certificate, "tls.certificate"),
            _content(self._ca, "tls.ca") if self._ca else None,
        )


def _configuration(key: bytes, certificate: bytes, ca: bytes | None) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=ca)


def _content(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}.") from error
