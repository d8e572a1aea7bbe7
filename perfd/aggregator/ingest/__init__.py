"""Receives the streams of agents and applies their records to the state."""

from perfd.aggregator.ingest.agent_credential import AgentCredential
from perfd.aggregator.ingest.agent_sessions import AgentSession, IngestSessions
from perfd.aggregator.ingest.grpc_server import TelemetryServer
from perfd.aggregator.ingest.ingest import MAX_SEQUENCE, Ingest, check_hello
from perfd.aggregator.ingest.ingest_thread import IngestThread
from perfd.aggregator.ingest.jetstream import NatsReceiver

__all__ = [
    "MAX_SEQUENCE",
    "AgentCredential",
    "AgentSession",
    "Ingest",
    "IngestSessions",
    "IngestThread",
    "NatsReceiver",
    "TelemetryServer",
    "check_hello",
]
