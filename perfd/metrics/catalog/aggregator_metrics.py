"""What the aggregator exports of itself."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.collector import ColumnKind
from perfd.metrics.catalog.metric_info import MetricInfo, metric

_SELF = "aggregator"


def _of_exporter(name: str, help_text: str, *, kind: ColumnKind = ColumnKind.COUNTER) -> MetricInfo:
    absent = "Without that exporter in `exporters`."
    return metric(name, help_text, labels=("exporter",), source=_SELF, absent=absent, kind=kind)


AGGREGATOR_METRICS: Sequence[MetricInfo] = (
    metric("perfd_build_info", "Version of the aggregator; always 1.", labels=("version",), source=_SELF),
    metric("perfd_agents_connected", "Agents with an open stream.", source=_SELF),
    metric("perfd_jobs", "Jobs in memory.", source=_SELF),
    metric("perfd_batches_total", "Batches taken.", source=_SELF, kind=ColumnKind.COUNTER),
    metric("perfd_records_total", "Records taken.", source=_SELF, kind=ColumnKind.COUNTER),
    metric(
        "perfd_samples_total", "Values in tables of samples taken.", source=_SELF, kind=ColumnKind.COUNTER
    ),
    metric(
        "perfd_repeated_batches_total",
        "Batches that were there already.",
        source=_SELF,
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_late_batches_total",
        "Batches that filled a gap after it was counted as lost.",
        source=_SELF,
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_lost_batches_total",
        "Gaps in agents' sequences; what is in perfd_late_batches_total came after all.",
        source=_SELF,
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_malformed_messages_total",
        "Messages that could not be decoded. A batch is left out; any other message ends its stream.",
        source=_SELF,
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_rejected_total",
        "Things refused because a bound of the aggregator's state was reached.",
        labels=("bound",),
        source=_SELF,
        absent="Nothing was refused by that bound.",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_webhook_requests_total",
        "Requests of Alertmanagers to the webhook: accepted, unauthorized, malformed, unavailable, disabled.",
        labels=("outcome",),
        source=_SELF,
        absent="None had that outcome.",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_webhook_alerts_total",
        "Alerts in those webhooks: started, refused, repeated, resolved, no_capture, unknown_job.",
        labels=("outcome",),
        source=_SELF,
        absent="None had that outcome.",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_ingest_seconds_total", "Time spent applying batches.", source=_SELF, kind=ColumnKind.COUNTER
    ),
    metric("perfd_ticks_total", "Rounds of analysis and rules.", source=_SELF, kind=ColumnKind.COUNTER),
    metric("perfd_failed_ticks_total", "Rounds that broke off.", source=_SELF, kind=ColumnKind.COUNTER),
    metric("perfd_tick_seconds_total", "Time spent in those rounds.", source=_SELF, kind=ColumnKind.COUNTER),
    metric(
        "perfd_rule_evaluation_seconds_total", "Time spent on rules.", source=_SELF, kind=ColumnKind.COUNTER
    ),
    metric(
        "perfd_round_timestamp_seconds",
        "Unix time of the newest finished round. A page over 30 s old (5 rounds, if that is longer) is not"
        " served: status 503.",
        source=_SELF,
        absent="Before the first round is finished.",
    ),
    metric(
        "perfd_failures_total",
        "Errors of perfd itself that stayed within one part of its work, as the analysis of one job.",
        labels=("part",),
        source=_SELF,
        absent="That part did not fail.",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_job_failing",
        "1 for a part of the work on a job that failed when it was tried last; other jobs are not affected.",
        labels=("job", "part"),
        source=_SELF,
        absent="Nothing of the job fails.",
    ),
    metric(
        "perfd_history_up",
        "1 while history can be written, else 0.",
        source=_SELF,
        absent="Without `history.path`.",
    ),
    metric(
        "perfd_history_written_rows_total",
        "Rows written to history.",
        source=_SELF,
        absent="Without `history.path`.",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_history_failed_rows_total",
        "Rows that could not be written to history.",
        source=_SELF,
        absent="Without `history.path`.",
        kind=ColumnKind.COUNTER,
    ),
    _of_exporter("perfd_exporter_rounds_total", "Rounds that an exporter took."),
    _of_exporter("perfd_exporter_failed_rounds_total", "Of them, those that raised an error."),
    _of_exporter("perfd_exporter_dropped_rounds_total", "Rounds dropped because the exporter was too slow."),
    _of_exporter("perfd_exporter_queued_rounds", "Rounds that wait for the exporter.", kind=ColumnKind.GAUGE),
    _of_exporter("perfd_exporter_seconds_total", "Time that the exporter's thread spent on rounds."),
    _of_exporter("perfd_exporter_sent_total", "Samples, alerts, rows or lines that the other side took."),
    _of_exporter(
        "perfd_exporter_lost_total", "Samples, alerts, rows or lines that were refused or given up."
    ),
    _of_exporter("perfd_exporter_retries_total", "Attempts at delivery that failed and are made again."),
    _of_exporter(
        "perfd_exporter_pending",
        "Samples, alerts or rows that wait for the other side.",
        kind=ColumnKind.GAUGE,
    ),
)
