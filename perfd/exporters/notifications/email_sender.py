"""A notification as an e-mail, sent by SMTP."""

from __future__ import annotations

import smtplib
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from html import escape
from typing import Any

from perfd.config import EmailReceiver
from perfd.errors import ConfigError
from perfd.exporters.notifications.notification_sender import OutgoingMessage, SendResult
from perfd.exporters.notifications.notification_text import (
    body,
    group_id,
    notification_id,
    one_line,
    title,
)
from perfd.exporters.notifications.secret_source import SecretSource, without
from perfd.net import DeadlineReader, connect, left_s, secure_connection
from perfd.report.render.finding_png import FindingPicture, finding_picture

_PORTS = {"starttls": 587, "tls": 465, "none": 25}


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
    text = body(message)
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


class EmailSender:
    """Sends each notification over a new connection. Raises `ConfigError` for wrong options."""

    def __init__(self, config: EmailReceiver, *, key: str) -> None:
        self._config = config
        self._port = _PORTS[config.security] if config.port is None else config.port
        self._password = SecretSource(
            file=config.password_file, variable=config.password_variable, key=f"{key}.password"
        )
        _check(config, self._port, bool(self._password), key)
        if self._password:
            self._password.read()
        self._context = None if config.security == "none" else _context(config.ca, key)

    def send(self, message: OutgoingMessage) -> SendResult:
        """One e-mail; a server without STARTTLS gets none, unless `security` is `none`."""
        try:
            password = self._password.read() if self._password else ""
        except ConfigError as error:
            return SendResult(sent=False, retry=True, text=str(error))
        email = email_of(message, sender=self._config.sender, to=self._config.to)
        deadline_s = time.monotonic() + self._config.timeout_s
        connection = _BoundedSmtp(self._context, deadline_s, tls=self._config.security == "tls")
        try:
            connection.greet(self._config.host, self._port)
            if self._config.security == "starttls":
                connection.starttls(context=connection.bounded_context)
            if self._config.username is not None:
                connection.login(self._config.username, password)
            refused = connection.send_message(email, self._config.sender, self._config.to)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return SendResult(sent=False, retry=_may_pass(error), text=self._reason(error, password))
        finally:
            with suppress(OSError, smtplib.SMTPException):
                connection.quit()
            connection.close()
        # At least one address took it: another attempt would reach that one twice.
        return SendResult(sent=True, text=one_line(f"refused: {', '.join(refused)}") if refused else "")

    def close(self) -> None:
        """Nothing is kept."""

    def _reason(self, error: Exception, password: str) -> str:
        # Servers that quote a login quote it as they got it.
        plain = (password, f"\0{self._config.username}\0{password}") if password else ()
        secrets = (*plain, *(b64encode(one.encode()).decode() for one in plain))
        return one_line(without(str(error), *secrets)) or type(error).__name__


class _BoundedSmtp(smtplib.SMTP):
    """An exchange with a mail server that raises `TimeoutError` when it is not over at the deadline.

    smtplib's own limit is one of each read, and it has none for finding a name.
    """

    def __init__(self, context: ssl.SSLContext | None, deadline_s: float, *, tls: bool) -> None:
        # With a name, because smtplib's default asks the resolver.
        super().__init__(local_hostname=_own_name())
        self._deadline_s = deadline_s
        self._tls = tls
        self.bounded_context: Any = None if context is None else _BoundedContext(context, deadline_s)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:  # noqa: ARG002  (as smtplib has it)
        connection = connect(host, port, self._deadline_s)
        if not self._tls:
            return connection
        try:
            wrapped: socket.socket = self.bounded_context.wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise
        return wrapped

    def greet(self, host: str, port: int) -> None:
        """Connect; raises `OSError` or `smtplib.SMTPConnectError`."""
        # The name that the server's certificate must have: only smtplib's constructor sets it.
        self._host = host
        code, text = self.connect(host, port)
        if code != 220:
            raise smtplib.SMTPConnectError(code, text)

    def send(self, s: Any) -> None:  # noqa: ANN401  (as smtplib has it)
        if self.sock is not None:
            self.sock.settimeout(left_s(self._deadline_s))
        super().send(s)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = DeadlineReader(self.sock, self._deadline_s).makefile()
        return super().getreply()


class _BoundedContext:
    """What smtplib asks of an `ssl.SSLContext`, with the deadline on the handshake."""

    def __init__(self, context: ssl.SSLContext, deadline_s: float) -> None:
        self._context = context
        self._deadline_s = deadline_s

    def wrap_socket(self, connection: socket.socket, *, server_hostname: str) -> ssl.SSLSocket:
        return secure_connection(connection, self._context, server_hostname, self._deadline_s)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return any(400 <= code < 500 for code, _ in error.recipients.values())
    if isinstance(error, smtplib.SMTPAuthenticationError):
        # A new password is read with the next attempt.
        return True
    if isinstance(error, (smtplib.SMTPSenderRefused, smtplib.SMTPDataError)):
        return error.smtp_code < 500
    # Errors of certificates are both OSError and ValueError; all of smtplib are OSError.
    return isinstance(error, OSError)


def _own_name() -> str:
    name = socket.gethostname()
    return name if name.isascii() and name.isprintable() and name else "localhost"


def _context(ca: str | None, key: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ConfigError(f"{key}.ca: cannot use the certificates in {ca}: {error}.") from error


def _check(config: EmailReceiver, port: int, has_password: bool, key: str) -> None:
    if not config.host or not (config.host.isascii() and config.host.isprintable()):
        raise ConfigError(f"{key}.host: {config.host!r} is not the name of a host.")
    if not 0 < port < 65_536:
        raise ConfigError(f"{key}.port: {port} is not a port.")
    if not config.timeout_s > 0:
        raise ConfigError(f"{key}.timeout_s: it must be positive.")
    if not config.to:
        raise ConfigError(f"{key}.to: it needs an address.")
    check_address(config.sender, key=f"{key}.sender")
    for place, address in enumerate(config.to):
        check_address(address, key=f"{key}.to[{place}]")
    if (config.username is None) == has_password:
        raise ConfigError(f"{key}: set `username` and `password_file` or `password_variable`, or neither.")
    if config.username is not None and config.security == "none":
        raise ConfigError(f"{key}: a login needs `security: starttls` or `tls`.")
