"""S3-compatible storage, with the extra `perfd[s3]`.

Errors of the client contain requests and answers, in which there may be access keys: only the code of an
answer becomes part of a message.
"""

from __future__ import annotations

import asyncio
import configparser
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from perfd.config import ObjectReadingConfig, ObjectStorageConfig
from perfd.errors import ConfigError, StorageError, reason_of
from perfd.net.http import is_loopback

if TYPE_CHECKING:
    from obstore.store import S3Store

_PART_BYTES = 8 * 1024 * 1024
"""S3 asks for at least 5 MiB for all parts but the last."""
_MOST_PARTS = 10_000
"""S3's limit for an object."""
_PARTS_AT_ONCE = 3
"""An upload takes this many parts of memory, and must leave the network to the job."""
_CONNECT_TIMEOUT_S = 10
"""For TCP and TLS. Chosen."""
_LOOK_EVERY_S = 0.1
"""How often an upload is asked whether it must stop. Chosen."""
_TRIES = 2
"""Of one request; uploads have their own backoff."""
_LONGEST_LINK_S = 3600.0
"""How long links to files are valid: anyone with a link can use it. Chosen."""
_CREDENTIALS_S = 300.0
"""How long credentials of a file are used before it is read again."""
_URL = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[A-Za-z0-9._=/-]*))?")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_ADVICE: Mapping[str, str] = {
    "NoSuchBucket": "the bucket does not exist: create it, or correct `url`",
    "NoSuchKey": "the file does not exist: a lifecycle rule of the bucket, or a user, removed it",
    "AccessDenied": "the credentials do not permit this: compare the policy with docs/object-storage.md",
    "InvalidAccessKeyId": "the access key is unknown: renew the credentials",
    "SignatureDoesNotMatch": "the secret key is wrong: renew the credentials",
    "ExpiredToken": "the credentials have expired: renew them",
    "RequestTimeTooSkewed": "the clock is wrong: synchronize it",
    "QuotaExceeded": "the bucket is full: raise its quota, or shorten its lifecycle rule",
    "XMinioStorageFull": "the server's disks are full: make room there",
    "BadDigest": "the data was damaged in transit; it is sent again",
    "XAmzContentSHA256Mismatch": "the data was damaged in transit; it is sent again",
    "XAmzContentChecksumMismatch": "the data was damaged in transit; it is sent again",
    "SlowDown": "the server is busy; the request is repeated later",
}
_BY_STATUS: Mapping[str, str] = {
    "401": "the credentials are not accepted: renew them",
    "403": _ADVICE["AccessDenied"],
    "404": _ADVICE["NoSuchKey"],
    "503": _ADVICE["SlowDown"],
    "507": _ADVICE["QuotaExceeded"],
}
_NO_CREDENTIALS = "no credentials: set `credentials_file`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Where the client looks for the address of the server."""
_LAST_RESORT = "/latest/api/token"
"""Where the client looks for credentials last: the address of instances' metadata."""


class ObjectStorage:
    """Files below the prefix of a bucket, by key. Every method but `link` may take long; thread-safe.

    Methods raise `StorageError` with a sentence without secrets.
    """

    def __init__(self, config: ObjectStorageConfig, *, key: str) -> None:
        """`key` is that of `config` in the configuration; raises `ConfigError`."""
        self._config = config
        self._key = key
        if importlib.util.find_spec("obstore") is None:
            raise ConfigError(f"{key}: install perfd[s3], which contains the object storage client.")
        parts = _URL.fullmatch(config.url)
        if parts is None:
            raise ConfigError(f"{key}.url: {config.url!r} must be s3://BUCKET or s3://BUCKET/PREFIX.")
        self._bucket = parts["bucket"]
        self._prefix = (parts["prefix"] or "").strip("/")
        self.url = f"s3://{self._bucket}/{self._prefix}".rstrip("/")
        """Its address, without credentials."""
        self._check_endpoint(config.endpoint, "endpoint")
        for name in () if config.endpoint else _ENDPOINT_VARIABLES:
            self._check_endpoint(os.environ.get(name), f"endpoint ({name})")
        if config.kms_key_id and config.server_side_encryption != "aws:kms":
            raise ConfigError(f"{key}.kms_key_id: it needs `server_side_encryption: aws:kms`.")
        links = config if isinstance(config, ObjectReadingConfig) else None
        public = links.public_endpoint if links else None
        self._check_endpoint(public, "public_endpoint")
        self._lifetime_s = links.link_lifetime_s if links else 0.0
        if links and not 1.0 <= self._lifetime_s <= _LONGEST_LINK_S:
            raise ConfigError(f"{key}.link_lifetime_s: it must be between 1 and {_LONGEST_LINK_S:g}.")
        self._store = self._open(config.endpoint)
        self._public = self._open(public) if public else self._store

    def put(self, key: str, file: Path, given_up: Callable[[], bool] = lambda: False) -> None:
        """Store a file, in parts if it is large; the server compares a checksum of each part.

        It is stored when this returns. Soon after `given_up` holds it raises, and nothing is stored.
        """
        self._do(
            f"{file.name} cannot be stored in {self.url}",
            lambda: asyncio.run(self._put(key, file, given_up)),
        )

    async def _put(self, key: str, file: Path, given_up: Callable[[], bool]) -> None:
        import obstore  # noqa: PLC0415  (with the extra only)

        size_bytes = file.stat().st_size  # noqa: ASYNC240  (nothing else runs in this loop)

        async def put() -> None:
            await obstore.put_async(
                self._store,
                key,
                file,
                chunk_size=part_bytes(size_bytes),
                max_concurrency=_PARTS_AT_ONCE,
            )

        # A thread in the client's own code could not be ended.
        putting = asyncio.create_task(put())
        while not (await asyncio.wait({putting}, timeout=_LOOK_EVERY_S))[0]:
            if given_up():
                putting.cancel()
                await asyncio.wait({putting})
                raise StorageError(f"The upload of {file.name} was interrupted.")
        putting.result()

    def size_bytes(self, key: str) -> int:
        """The size of a stored file."""
        import obstore  # noqa: PLC0415  (with the extra only)

        found = self._do(f"{self.url}/{key} cannot be read", lambda: obstore.head(self._store, key))
        return int(found["size"])

    def fetch(self, key: str, target: Path, max_bytes: int) -> None:
        """Write a stored file to a new private one; raises also if it is larger than `max_bytes`."""
        import obstore  # noqa: PLC0415  (with the extra only)

        def copy() -> None:
            target.touch(mode=0o600, exist_ok=False)
            left_bytes = max_bytes
            with target.open("wb") as file:
                for chunk in obstore.get(self._store, key).stream():
                    left_bytes -= len(chunk)
                    if left_bytes < 0:
                        raise StorageError(f"{self.url}/{key} is larger than expected.")
                    file.write(chunk)

        self._do(f"{self.url}/{key} cannot be read", copy)

    def read(self, key: str, max_bytes: int) -> bytes:
        """A stored file; raises also if it is larger than `max_bytes`."""
        import obstore  # noqa: PLC0415  (with the extra only)

        if self.size_bytes(key) > max_bytes:
            raise StorageError(f"{self.url}/{key} is larger than {max_bytes} bytes.")
        content: bytes = self._do(
            f"{self.url}/{key} cannot be read",
            lambda: bytes(obstore.get_range(self._store, key, start=0, end=max_bytes)),
        )
        return content

    def link(self, key: str) -> tuple[str, float]:
        """An address at which everyone can read this file, and how long it is valid, in seconds."""
        import obstore  # noqa: PLC0415  (with the extra only)

        lifetime = timedelta(seconds=self._lifetime_s)
        link = self._do(
            f"{self.url}/{key} cannot be linked", lambda: obstore.sign(self._public, "GET", key, lifetime)
        )
        return link, self._lifetime_s

    def key_of(self, url: str) -> str | None:
        """The key in an address that `url_of` made; None for one elsewhere."""
        key = url.removeprefix(f"{self.url}/")
        return None if key == url else key

    def url_of(self, key: str) -> str:
        return f"{self.url}/{key}"

    def _open(self, endpoint: str | None) -> S3Store:
        from obstore.store import S3Store  # noqa: PLC0415  (with the extra only)

        config = self._config
        options: dict[str, Any] = {
            "region": config.region,
            # AWS_ENDPOINT_URL_S3 would replace one by the name `endpoint`.
            "aws_endpoint_url_s3": endpoint,
            "server_side_encryption": config.server_side_encryption,
            "sse_kms_key_id": config.kms_key_id,
        }
        if config.credentials_file:
            self._credentials()
            options["credential_provider"] = self._credentials
        client: dict[str, Any] = {
            # `_check_endpoint` decides; without an endpoint in the configuration the environment has it.
            "allow_http": endpoint is None or endpoint.startswith("http:"),
            "timeout": timedelta(seconds=config.timeout_s),
            "connect_timeout": timedelta(seconds=_CONNECT_TIMEOUT_S),
            "user_agent": "perfd",
        }
        try:
            if config.ca:
                client["root_certificate"] = Path(config.ca).read_bytes()
            return S3Store(
                self._bucket,
                prefix=self._prefix or None,
                checksum_algorithm="SHA256",
                client_options=client,  # type: ignore[arg-type]
                retry_config={
                    "max_retries": _TRIES - 1,
                    "retry_timeout": timedelta(seconds=config.timeout_s),
                },
                **{name: value for name, value in options.items() if value is not None},
            )
        except OSError as error:
            raise ConfigError(f"{self._key}.ca: {config.ca} cannot be read: {reason_of(error)}.") from error
        except Exception as error:  # noqa: BLE001  (of its own classes and of Python's)
            raise ConfigError(f"{self._key}: the client rejects it: {_cause(error)}.") from None

    def _credentials(self) -> dict[str, Any]:
        """The credentials in the file, as it is now; raises `ConfigError`."""
        path = self._config.credentials_file or ""
        where = f"{self._key}.credentials_file: {path}"
        parser = configparser.ConfigParser(interpolation=None, default_section="")
        try:
            parser.read_string(Path(path).read_text(encoding="utf-8"))
            section = parser["default"]
            return {
                "access_key_id": section["aws_access_key_id"],
                "secret_access_key": section["aws_secret_access_key"],
                "token": section.get("aws_session_token"),
                "expires_at": datetime.now(UTC) + timedelta(seconds=_CREDENTIALS_S),
            }
        except OSError as error:
            raise ConfigError(f"{where} cannot be read: {reason_of(error)}.") from error
        # The errors of the parser quote lines of the file.
        except (configparser.Error, UnicodeDecodeError):
            raise ConfigError(f"{where} is not in the format of ~/.aws/credentials.") from None
        except KeyError as error:
            raise ConfigError(f"{where} lacks {error.args[0]} of profile `default`.") from None

    def _check_endpoint(self, endpoint: str | None, option: str) -> None:
        if endpoint is None:
            return
        try:
            parts = urlsplit(endpoint)
            host = parts.hostname
        except ValueError:
            host = None
        if host is None or parts.scheme not in {"http", "https"}:
            raise ConfigError(f"{self._key}.{option}: it must be http://HOST:PORT or https://HOST:PORT.")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                f"{self._key}.{option}: an address must not contain credentials; name a `credentials_file`."
            )
        if parts.scheme == "http" and not self._config.allow_plaintext and not is_loopback(host):
            raise ConfigError(
                f"{self._key}.{option}: {host} is another machine, and http:// is plain text: "
                f"use https://, or set {self._key}.allow_plaintext."
            )

    def _do(self, failed: str, work: Any) -> Any:  # noqa: ANN401  (the client's types)
        try:
            return work()
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001  (of the client's own classes and of Python's)
            # It may contain secrets.
            raise StorageError(f"{failed}: {_cause(error)}.") from None


def part_bytes(size_bytes: int) -> int:
    """The size of the parts of an upload: larger for a file that would have too many of them."""
    return max(_PART_BYTES, -(-size_bytes // _MOST_PARTS))


def _cause(error: Exception) -> str:
    """Why something failed, and what to do, without anything that the server or the client quoted."""
    text = str(error)
    if isinstance(error, ConfigError):
        words = text.rstrip(".")
    elif isinstance(error, OSError) and error.strerror:
        words = error.strerror
    elif _LAST_RESORT in text:
        words = _NO_CREDENTIALS
    elif code := _CODE.search(text):
        words = f"{_ADVICE.get(code[1], 'the server refuses it')} ({code[1]})"
    elif status := _STATUS.search(text):
        words = _BY_STATUS.get(status[1], f"the server answers with status {status[1]}")
    elif "InvalidCertificate" in text:
        words = "the server's certificate is not trusted: name its authority in `ca`, or correct `endpoint`"
    elif "kind: Timeout" in text or "TimedOut" in text:
        words = "the server is too slow (`timeout_s`)"
    else:
        words = "no server answers: check `endpoint` and the network"
    return words
