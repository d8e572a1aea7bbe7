"""Receives the streams of agents and applies their records to the state."""

from perfd.aggregator.ingest.grpc_server import TelemetryServer
from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.ingest.ingest_thread import IngestThread
from perfd.aggregator.ingest.nats_receiver import NatsReceiver

__all__ = [
    "Ingest",
    "IngestThread",
    "NatsReceiver",
    "TelemetryServer",
]
