"""Receives what agents publish to NATS JetStream, with the extra `perfd[nats]`."""

from perfd.aggregator.ingest.jetstream.nats_receiver import NatsReceiver

__all__ = ["NatsReceiver"]
