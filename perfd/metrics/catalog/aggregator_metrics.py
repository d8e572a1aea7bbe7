"""Metrics about the aggregator."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.metric_info import MetricInfo, metric, of_job

_SELF = "aggregator"


def _of_exporter(name: str, help_text: str) -> MetricInfo:
    absent = "Without that exporter in `exporters`."
    return metric(name, help_text, labels=("exporter",), source=_SELF, absent=absent)


def _of_nats(name: str, help_text: str) -> MetricInfo:
    return metric(name, help_text, source=_SELF, absent="Without `nats`.")


def _of_group(name: str, help_text: str) -> MetricInfo:
    return metric(name, help_text, source=_SELF, absent="Outside of a group.")


AGGREGATOR_METRICS: Sequence[MetricInfo] = (
    metric("perfd_build_info", "Version of the aggregator; always 1.", labels=("version",), source=_SELF),
    metric("perfd_agents_connected", "Agents with an open stream.", source=_SELF),
    metric("perfd_jobs", "Jobs in memory.", source=_SELF),
    metric(
        "perfd_node_suspect_ratio",
        "Probability that a node, or a GPU of it, is worse than its peers over all jobs (docs/nodes.md).",
        labels=("node",),
        source=_SELF,
        absent="When fewer than two jobs blamed it, or it has no peers with the same GPUs.",
    ),
    metric(
        "perfd_node_incidents",
        "Incidents of a node over all jobs, those of long ago counted less.",
        labels=("node",),
        source=_SELF,
        absent="When nothing blamed the node.",
    ),
    metric(
        "perfd_node_lost_gpu_seconds",
        "GPU time that jobs lost by a node, that of long ago counted less.",
        labels=("node",),
        source=_SELF,
        absent="When nothing blamed the node.",
    ),
    metric(
        "perfd_node_drains",
        "Nodes that perfd took out of scheduling (`done`) or failed to.",
        labels=("outcome",),
        source=_SELF,
        absent="Without that outcome.",
    ),
    metric("perfd_batches_total", "Batches received.", source=_SELF),
    metric("perfd_records_total", "Records received.", source=_SELF),
    metric("perfd_samples_total", "Values in sample tables received.", source=_SELF),
    metric("perfd_repeated_batches_total", "Batches received before.", source=_SELF),
    metric(
        "perfd_resent_batches_total",
        "Batches that agents sent over NATS again: not acknowledged, or not stored in time.",
        source=_SELF,
    ),
    metric("perfd_late_batches_total", "Batches that arrived after they were counted as lost.", source=_SELF),
    metric(
        "perfd_lost_batches_total",
        "Gaps in agents' sequences, including those filled later (perfd_late_batches_total).",
        source=_SELF,
    ),
    metric(
        "perfd_malformed_messages_total",
        "Messages that could not be decoded. A batch is skipped; any other message closes its stream.",
        source=_SELF,
    ),
    _of_nats("perfd_nats_reading", "1 while this aggregator reads the messages of its cluster from NATS."),
    _of_nats("perfd_nats_waiting_messages", "Messages in the stream that are not read yet."),
    _of_nats("perfd_nats_unsettled_messages", "Messages that are read, and not acknowledged yet."),
    _of_nats("perfd_nats_lag_seconds", "How long the newest message that was read had been in the stream."),
    _of_nats(
        "perfd_nats_received_messages_total",
        "Messages read from NATS, those that were delivered again included.",
    ),
    _of_nats(
        "perfd_nats_refused_messages_total",
        "Messages that could not be taken; the stream for refused ones keeps them, with the reason.",
    ),
    _of_nats(
        "perfd_nats_interruptions_total",
        "How often reading ended: connection lost, consumer removed, server without an answer or too fast.",
    ),
    _of_nats(
        "perfd_nats_direct_messages_total",
        "Messages taken from agents without the stream, which delivered nothing for a moment.",
    ),
    _of_nats(
        "perfd_nats_undelivered_seconds",
        "For how long agents have sent messages of which none came through the stream; 0 if one did.",
    ),
    _of_group("perfd_partition_lease_held", "1 while the lease of this partition is valid."),
    _of_group("perfd_partition_epoch", "Epoch of the partition's lease; each new holder has a greater one."),
    _of_group("perfd_group_partitions", "Partitions into which the group divides its jobs."),
    _of_group("perfd_group_members", "Aggregators in the group, as this one sees it."),
    metric(
        "perfd_rejected_total",
        "Items refused because a limit of the aggregator's state was reached.",
        labels=("bound",),
        source=_SELF,
        absent="When nothing was refused by that limit.",
    ),
    metric(
        "perfd_refused_total",
        "What agents and clients were refused because they may not do it; the audit log has each case.",
        labels=("reason",),
        source=_SELF,
        absent="When nothing was refused for that reason.",
    ),
    metric(
        "perfd_webhook_requests_total",
        "Requests of Alertmanager to the webhook: accepted, unauthorized, malformed, unavailable, disabled.",
        labels=("outcome",),
        source=_SELF,
        absent="Without that outcome.",
    ),
    metric(
        "perfd_webhook_alerts_total",
        "Alerts in those webhooks: started, refused, repeated, resolved, no_capture, unknown_job.",
        labels=("outcome",),
        source=_SELF,
        absent="Without that outcome.",
    ),
    metric("perfd_ingest_seconds_total", "Time spent applying batches.", source=_SELF),
    metric("perfd_ticks_total", "Rounds of analysis and rules.", source=_SELF),
    metric("perfd_failed_ticks_total", "Rounds that failed.", source=_SELF),
    metric("perfd_tick_seconds_total", "Time spent in rounds of analysis and rules.", source=_SELF),
    metric("perfd_rule_evaluation_seconds_total", "Time spent on evaluating rules.", source=_SELF),
    metric(
        "perfd_round_timestamp_seconds",
        "Time of the newest completed round. If it is older than 30 s (or 5 rounds, if longer), /metrics"
        " returns status 503.",
        source=_SELF,
        absent="Before the first round completes.",
    ),
    metric(
        "perfd_failures_total",
        "Internal errors of perfd, isolated to a part of its work, such as the analysis of one job.",
        labels=("part",),
        source=_SELF,
        absent="When that part did not fail.",
    ),
    of_job(
        "perfd_job_failing",
        "1 while a part of the work on a job fails; other jobs are not affected.",
        labels=("part",),
        source=_SELF,
        absent="When nothing of the job fails.",
    ),
    metric(
        "perfd_history_up",
        "1 while history can be written, else 0.",
        source=_SELF,
        absent="Without `history.path` and `history.url`.",
    ),
    metric(
        "perfd_history_written_rows_total",
        "Rows written to history.",
        source=_SELF,
        absent="Without `history.path` and `history.url`.",
    ),
    metric(
        "perfd_history_failed_rows_total",
        "Rows that could not be written to history.",
        source=_SELF,
        absent="Without `history.path` and `history.url`.",
    ),
    metric(
        "perfd_history_damaged_rows_total",
        "Rows of the history that were left out because they cannot be read.",
        source=_SELF,
        absent="Without `history.path` and `history.url`.",
    ),
    metric(
        "perfd_history_lost_rows_total",
        "Rows of a damaged history file that its repair could not save.",
        source=_SELF,
        absent="Without `history.path` and `history.url`.",
    ),
    metric(
        "perfd_history_unreadable_pages_total",
        "Pages of a damaged history file of which its repair could read nothing: their rows are not counted.",
        source=_SELF,
        absent="Without `history.path` and `history.url`.",
    ),
    metric(
        "perfd_history_unstored_agents",
        "Agents with batches that were received and are not stored: they keep them, and send them again.",
        source=_SELF,
        absent="Without `history.path` and `history.url`.",
    ),
    _of_exporter("perfd_exporter_rounds_total", "Rounds passed to the exporter."),
    _of_exporter("perfd_exporter_failed_rounds_total", "Rounds in which the exporter failed."),
    _of_exporter("perfd_exporter_dropped_rounds_total", "Rounds dropped because the exporter was too slow."),
    _of_exporter("perfd_exporter_queued_rounds", "Rounds waiting for the exporter."),
    _of_exporter("perfd_exporter_seconds_total", "Time spent by the exporter's thread."),
    _of_exporter("perfd_exporter_sent_total", "Samples, alerts, rows or lines accepted by the receiver."),
    _of_exporter("perfd_exporter_lost_total", "Samples, alerts, rows or lines refused or dropped."),
    _of_exporter("perfd_exporter_retries_total", "Failed deliveries that are retried."),
    _of_exporter("perfd_exporter_pending", "Samples, alerts or rows waiting for the receiver."),
)
