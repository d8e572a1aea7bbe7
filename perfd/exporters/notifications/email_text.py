"""A notification as an e-mail. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate

from perfd.errors import ConfigError
from perfd.exporters.notifications.notification_sender import OutgoingMessage
from perfd.exporters.notifications.notification_text import body, group_id, notification_id, title


def email_of(message: OutgoingMessage, *, sender: str, to: Sequence[str]) -> EmailMessage:
    """The e-mail; all texts of jobs in its headers are one line without control characters."""
    domain = Address(addr_spec=sender).domain
    email = EmailMessage(policy=SMTP)
    email["Subject"] = f"[perfd] {title(message.notification)}"
    email["From"] = sender
    email["To"] = ", ".join(to)
    email["Date"] = formatdate(message.time_unix_s)
    email["Message-ID"] = f"<{notification_id(message.notification)}@{domain}>"
    email["References"] = f"<{group_id(message.notification)}@{domain}>"
    # RFC 3834: no automatic answers, please.
    email["Auto-Submitted"] = "auto-generated"
    text = body(message.notification, message.summary, message.external_url)
    email.set_content(text, cte="base64")
    return email


def check_address(address: str, *, key: str) -> None:
    """Raises `ConfigError` unless it is one plain ASCII address, such as `oncall@example.com`."""
    try:
        parsed = Address(addr_spec=address)
    except (ValueError, IndexError, TypeError) as error:
        raise ConfigError(f"{key}: {address!r} is not an e-mail address.") from error
    plain = address.isascii() and address.isprintable() and " " not in address
    if not (plain and parsed.username and parsed.domain and parsed.addr_spec == address):
        raise ConfigError(f"{key}: {address!r} is not an e-mail address.")
