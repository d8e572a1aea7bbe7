"""A notification as an e-mail. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from html import escape

from perfd.errors import ConfigError
from perfd.exporters.notifications.notification_sender import OutgoingMessage
from perfd.exporters.notifications.notification_text import (
    body,
    group_id,
    notification_id,
    one_line,
    title,
)
from perfd.report.render.finding_png import FindingPicture, finding_picture


def email_of(message: OutgoingMessage, *, sender: str, to: Sequence[str]) -> EmailMessage:
    """The e-mail, with a picture of what limits the job if that is known.

    All texts of jobs in its headers are one line without control characters.
    """
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
    picture = None if message.summary is None else finding_picture(message.summary)
    if picture is not None:
        _illustrate(email, text, picture, cid=f"{notification_id(message.notification)}.picture@{domain}")
    return email


def _illustrate(email: EmailMessage, text: str, picture: FindingPicture, *, cid: str) -> None:
    """Add the text as HTML with the picture embedded, so that mail readers load nothing from elsewhere."""
    caption = escape(one_line(picture.caption))
    shown = (
        f'<p><img src="cid:{cid}" width="600" alt="{caption}"></p><p><small>{caption}</small></p>'
        f'<pre style="white-space: pre-wrap; font-family: inherit">{escape(text)}</pre>'
    )
    email.add_alternative(f"<!doctype html><html><body>{shown}</body></html>", subtype="html", cte="base64")
    # With all parts in one multipart/related, readers show the picture where it belongs.
    for part in email.iter_parts():
        if part.get_content_type() == "text/html":
            part.add_related(
                picture.png, "image", "png", cid=f"<{cid}>", filename="finding.png", disposition="inline"
            )


def check_address(address: str, *, key: str) -> None:
    """Raises `ConfigError` unless it is one plain ASCII address, such as `oncall@example.com`."""
    try:
        parsed = Address(addr_spec=address)
    except (ValueError, IndexError, TypeError) as error:
        raise ConfigError(f"{key}: {address!r} is not an e-mail address.") from error
    plain = address.isascii() and address.isprintable() and " " not in address
    if not (plain and parsed.username and parsed.domain and parsed.addr_spec == address):
        raise ConfigError(f"{key}: {address!r} is not an e-mail address.")
