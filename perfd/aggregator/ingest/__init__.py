"""Receives the streams of agents and applies their records to the state."""

from perfd.aggregator.ingest.agent_credential import AgentCredential
from perfd.aggregator.ingest.agent_greeting import MAX_SEQUENCE, check_hello
from perfd.aggregator.ingest.agent_sessions import AgentSession
from perfd.aggregator.ingest.grpc_server import TelemetryServer
from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.ingest.ingest_thread import IngestThread
from perfd.aggregator.ingest.jetstream import NatsReceiver

__all__ = [
    "MAX_SEQUENCE",
    "AgentCredential",
    "AgentSession",
    "Ingest",
    "IngestThread",
    "NatsReceiver",
    "TelemetryServer",
    "check_hello",
]
