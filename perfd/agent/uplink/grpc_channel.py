"""Opens gRPC channels to the aggregator as configured, encrypted or not."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

import grpc

from perfd.config import TlsConfig, UplinkConfig
from perfd.errors import ConfigError, PerfdError
from perfd.net import split_address
from perfd.wire.service import CLIENT_OPTIONS, CONNECT_METHOD


class StreamCall(Protocol):
    """An open stream: iterate it for the aggregator's messages; raises `grpc.RpcError` when it breaks."""

    def __iter__(self) -> Iterator[bytes]: ...

    def cancel(self) -> object:
        """End the stream now, from any thread."""


def connect(
    channel: grpc.Channel, requests: Iterator[bytes], metadata: Sequence[tuple[str, str]] = ()
) -> StreamCall:
    """Open the stream, and send `requests` from a thread of gRPC."""
    # Without serializers gRPC passes bytes unchanged: batches are encoded in the spool.
    method = channel.stream_stream(CONNECT_METHOD, request_serializer=None, response_deserializer=None)
    return cast("StreamCall", method(requests, metadata=tuple(metadata)))


class ChannelFactory:
    """Makes one channel after another to the same aggregator.

    Certificates are read for each channel, so that renewed ones are used without
    a restart. Raises `ConfigError` if the configuration cannot work.
    """

    def __init__(self, config: UplinkConfig) -> None:
        self._address = config.address
        self._tls = config.tls
        self._token_file = config.token_file
        if config.token_file is not None and config.tls is None:
            raise ConfigError("uplink.token_file: it would be sent in plain text; configure uplink.tls.")
        try:
            host, _ = split_address(config.address)
        except PerfdError as error:
            raise ConfigError(f"uplink.address: {error}") from error
        if config.tls is not None:
            _credentials(config.tls)
        elif not (config.allow_plaintext or is_loopback(host)):
            raise ConfigError(
                f"uplink.address {config.address} is another machine, and uplink.tls is not set: "
                "configure TLS, or set uplink.allow_plaintext to true to send without encryption."
            )

    def metadata(self) -> Sequence[tuple[str, str]]:
        """What a new stream shows: the token, read again as kubelet renews it; raises `ConfigError`."""
        content = _read("token_file", self._token_file)
        return () if content is None else (("authorization", f"Bearer {content.decode('ascii').strip()}"),)

    def dial(self) -> grpc.Channel:
        """A new channel, which connects when it is used; raises `ConfigError` as the constructor does."""
        if self._tls is None:
            return grpc.insecure_channel(self._address, options=CLIENT_OPTIONS)
        return grpc.secure_channel(self._address, _credentials(self._tls), options=CLIENT_OPTIONS)


def is_loopback(host: str) -> bool:
    """Whether traffic to `host` stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _credentials(tls: TlsConfig) -> grpc.ChannelCredentials:
    if (tls.certificate is None) != (tls.key is None):
        raise ConfigError("uplink.tls needs both certificate and key, or neither.")
    return grpc.ssl_channel_credentials(
        root_certificates=_read("ca", tls.ca),
        private_key=_read("key", tls.key),
        certificate_chain=_read("certificate", tls.certificate),
    )


def _read(what: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        what = what if what == "token_file" else f"tls.{what}"
        raise ConfigError(f"uplink.{what}: {path} cannot be read: {error.strerror}.") from error
