"""S3-compatible storage for captured files and reports."""

from __future__ import annotations

from typing import Literal

from perfd.config.unknown_keys import Strict


class ObjectStorageConfig(Strict, frozen=True):
    """A bucket. Without `credentials_file`, credentials come from the usual AWS environment."""

    url: str
    """`s3://BUCKET/PREFIX`, the same for agents and aggregator."""
    endpoint: str | None = None
    """`https://HOST:PORT` of a server other than Amazon's; null: `AWS_ENDPOINT_URL`, or the region's."""
    region: str | None = None
    """null: `AWS_REGION`, otherwise us-east-1."""
    credentials_file: str | None = None
    """A file in the format of `~/.aws/credentials`; its profile `default` is read every 5 minutes."""
    ca: str | None = None
    """Certificates (PEM) to trust for https."""
    allow_plaintext: bool = False
    """Required for an `endpoint` with http:// on another machine."""
    server_side_encryption: Literal["AES256", "aws:kms"] | None = None
    """null: as the bucket is configured."""
    kms_key_id: str | None = None
    """The key for `aws:kms`; null: the account's default."""
    timeout_s: float = 60.0
    """Limit for one request: a part of 8 MiB of an upload, or a whole download."""


class ObjectReadingConfig(ObjectStorageConfig, frozen=True):
    """The bucket as the aggregator uses it."""

    public_endpoint: str | None = None
    """`endpoint` as browsers reach it, for links; null: the same."""
    link_lifetime_s: float = 300.0
    """How long a link to a file is valid, at most an hour."""
    report_max_bytes: int = 8 * 1024 * 1024 * 1024
    """Total size up to which the traces of a capture are fetched for its report."""
