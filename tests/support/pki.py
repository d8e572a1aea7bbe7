"""A certificate authority for tests, and certificates that it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import grpc

from perfd.config import TlsConfig

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Keeps everything in `folder`; needs the program openssl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl(
            "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2",
            # Python 3.13 and newer refuse an authority that does not say so.
            "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip

    def sign(self, name: str, *, names: str = "", common_name: str = "perfd") -> None:
        """Make `name`.pem and `name`.key; `names` are as openssl has them: `DNS:n0,URI:spiffe://x/node/n0`."""
        extension = ("-addext", f"subjectAltName={names}") if names else ()
        self._openssl(
            "req", "-x509", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem",
            "-subj", f"/CN={common_name}", *extension, "-addext", "basicConstraints=CA:FALSE",
            "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
        )  # fmt: skip

    def tls(self, name: str) -> TlsConfig:
        """How a side with this certificate is configured that checks that of the other one."""
        pair = {
            key: str(self.folder / f"{name}.{end}") for key, end in (("certificate", "pem"), ("key", "key"))
        }
        return TlsConfig(**pair, ca=str(self.folder / "ca.pem"))

    def client(self, name: str | None) -> grpc.ChannelCredentials:
        """GRPC's credentials of a client with this certificate, or without one."""
        ends = ("key", "pem")
        pair = (
            [None, None] if name is None else [(self.folder / f"{name}.{end}").read_bytes() for end in ends]
        )
        return grpc.ssl_channel_credentials((self.folder / "ca.pem").read_bytes(), *pair)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=self.folder, timeout=30)
