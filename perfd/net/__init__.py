"""The HTTP server and client, with limits on time and connections, and TLS."""

from perfd.net.access_control import AccessControl
from perfd.net.bearer_token import BearerToken
from perfd.net.deadline import connect
from perfd.net.http import Handler, HttpServer, Request, Response, is_loopback, require_free, split_address
from perfd.net.http_client import BoundedConnection, BoundedTlsConnection
from perfd.net.server_tls import ServerTls
from perfd.net.tls import client_context

__all__ = [
    "AccessControl",
    "BearerToken",
    "BoundedConnection",
    "BoundedTlsConnection",
    "Handler",
    "HttpServer",
    "Request",
    "Response",
    "ServerTls",
    "client_context",
    "connect",
    "is_loopback",
    "require_free",
    "split_address",
]
