"""An SMTP server on loopback (RFC 5321, STARTTLS, AUTH PLAIN) that remembers what it was sent."""

from __future__ import annotations

import base64
import re
import socketserver
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage


@dataclass
class Envelope:
    """One mail as it came."""

    mail_from: str = ""
    rcpt_tos: list[str] = field(default_factory=list)
    content: bytes = b""


class MailServer:
    """A context manager. With `login`, a pair, it asks for that over TLS; `answer` is its reply to DATA."""

    def __init__(
        self, *, starttls: ssl.SSLContext | None = None, tls: ssl.SSLContext | None = None, login=None
    ):
        self.envelopes: list[Envelope] = []
        self.answer = "250 OK"
        self.refused: set[str] = set()
        self.logins: list[tuple[bytes, bytes]] = []
        self.starttls, self.tls, self.login = starttls, tls, login
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Session)
        self._server.mail = self

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def mails(self) -> list[EmailMessage]:
        return [message_from_bytes(envelope.content, policy=policy.default) for envelope in self.envelopes]


class _Session(socketserver.BaseRequestHandler):
    def handle(self):
        self.mail: MailServer = self.server.mail
        self.secured = self.authenticated = False
        self.envelope = Envelope()
        with suppress(OSError):
            if self.mail.tls is not None:
                self._secure(self.mail.tls)
            self.lines = self.request.makefile("rb")
            self._say("220 ready")
            while (line := self.lines.readline()) and self._command(line.decode().rstrip("\r\n")):
                pass
        self.request.close()

    def _secure(self, context: ssl.SSLContext) -> None:
        self.request = context.wrap_socket(self.request, server_side=True)
        self.lines = self.request.makefile("rb")
        self.secured = True

    def _say(self, *lines: str) -> None:
        for line in lines:
            self.request.sendall(line.encode() + b"\r\n")

    def _command(self, line: str) -> bool:
        verb, _, rest = line.partition(" ")
        match verb.upper():
            case "EHLO":
                offers = ["STARTTLS"] if self.mail.starttls is not None and not self.secured else []
                offers += ["AUTH PLAIN"] if self.mail.login is not None and self.secured else []
                self._say("250-localhost", *(f"250-{offer}" for offer in offers), "250 8BITMIME")
            case "STARTTLS":
                self._say("220 go on")
                self._secure(self.mail.starttls)
            case "AUTH":
                self._authenticate(rest)
            case "MAIL" if (self.mail.starttls and not self.secured) or (
                self.mail.login and not self.authenticated
            ):
                self._say("530 not so")
            case "MAIL":
                self.envelope = Envelope(mail_from=_address(rest))
                self._say("250 OK")
            case "RCPT" if _address(rest) in self.mail.refused:
                self._say("550 no such user")
            case "RCPT":
                self.envelope.rcpt_tos.append(_address(rest))
                self._say("250 OK")
            case "DATA":
                self._data()
            case "QUIT":
                self._say("221 bye")
                return False
            case _:
                self._say("250 OK" if verb.upper() == "RSET" else "500 what?")
        return True

    def _authenticate(self, rest: str) -> None:
        _, name, password = base64.b64decode(rest.removeprefix("PLAIN ")).split(b"\0")
        self.mail.logins.append((name, password))
        self.authenticated = (name.decode(), password.decode()) == self.mail.login
        # Some servers quote what they got.
        self._say("235 OK" if self.authenticated else f"535 refused: {rest} {password.decode()}")

    def _data(self) -> None:
        self._say("354 go on")
        lines = []
        while (line := self.lines.readline()) not in {b".\r\n", b""}:
            lines.append(line.removeprefix(b"."))
        self.envelope.content = b"".join(lines)
        if self.mail.answer.startswith("250"):
            self.mail.envelopes.append(self.envelope)
        self._say(self.mail.answer)


def _address(rest: str) -> str:
    return re.search(r"<(.*?)>", rest)[1]
