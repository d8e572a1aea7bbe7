"""Connections: HTTP with limits on time and number, TLS, NATS, PostgreSQL, object storage; who may read."""

from perfd.net.access_control import AccessControl, BearerToken
from perfd.net.deadline import DeadlineReader, connect, left_s
from perfd.net.http import (
    Handler,
    HttpServer,
    Request,
    Response,
    error_response,
    is_loopback,
    json_response,
    require_free,
    route_of,
    split_address,
    text_response,
)
from perfd.net.http_client import BoundedConnection, BoundedTlsConnection, secure_connection
from perfd.net.loop_thread import LoopThread, end_tasks
from perfd.net.nats_client import PUBLISHED_HEADER_BYTES, NatsConnector
from perfd.net.object_storage import ObjectStorage
from perfd.net.tls import ServerTls, client_context

__all__ = [
    "PUBLISHED_HEADER_BYTES",
    "AccessControl",
    "BearerToken",
    "BoundedConnection",
    "BoundedTlsConnection",
    "DeadlineReader",
    "Handler",
    "HttpServer",
    "LoopThread",
    "NatsConnector",
    "ObjectStorage",
    "Request",
    "Response",
    "ServerTls",
    "client_context",
    "connect",
    "end_tasks",
    "error_response",
    "is_loopback",
    "json_response",
    "left_s",
    "require_free",
    "route_of",
    "secure_connection",
    "split_address",
    "text_response",
]
