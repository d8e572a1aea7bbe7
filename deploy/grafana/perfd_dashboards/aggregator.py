"""perfd itself: rounds, history, NATS, a group of aggregators, gateways and exporters."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from perfd_dashboards.panels import COUNT, PERCENT, SECONDS, board, choice, graph, number, page_link, q

_PLACE = "{{instance}} {{perfd_partition}}"
"""The partition is empty outside of a group."""
_EXPORTER = 'exporter=~"$exporter"'


def dashboard() -> Dashboard:
    """The dashboard `perfd-aggregator`."""
    itself = board("aggregator", "perfd: aggregator", "How perfd itself does, as its aggregators report it.")
    exporters = "label_values(perfd_exporter_rounds_total, exporter)"
    itself = itself.with_variable(choice("exporter", "Exporter", exporters, many=True))
    itself = itself.link(page_link("Page", "/"))
    for panels in (_numbers, _rounds, _nats, _group, _exports):
        itself = panels(itself)
    return itself


def _numbers(itself: Dashboard) -> Dashboard:
    stale = "max(time() - perfd_round_timestamp_seconds)"
    lost = "sum(increase(perfd_lost_batches_total[1h])) - sum(increase(perfd_late_batches_total[1h]))"
    return (
        itself.with_panel(
            number("Agents", "sum(perfd_agents_connected)", unit=COUNT, help_text="With an open stream.")
        )
        .with_panel(number("Jobs", "sum(perfd_jobs)", unit=COUNT, help_text="In memory."))
        .with_panel(
            number(
                "Newest round",
                stale,
                unit=SECONDS,
                bad_from=60.0,
                help_text="Since the last round of analysis and rules; the oldest of all aggregators.",
            )
        )
        .with_panel(
            number("History", "min(perfd_history_up)", unit="bool_on_off", help_text="Can be written.")
        )
        .with_panel(
            number(
                "Batches lost",
                lost,
                unit=COUNT,
                bad_from=1.0,
                help_text="In an hour: gaps in agents' sequences that were not filled.",
            )
        )
        .with_panel(
            number(
                "Partitions without a holder",
                "max(perfd_group_partitions) - sum(perfd_partition_lease_held)",
                unit=COUNT,
                bad_from=1.0,
                none="-",
                help_text="In a group: their jobs are not analyzed.",
            )
        )
    )


def _rounds(itself: Dashboard) -> Dashboard:
    spent = "rate(perfd_tick_seconds_total[$__rate_interval]) / rate(perfd_ticks_total[$__rate_interval])"
    return (
        itself.with_row(Row("Rounds and history"))
        .with_panel(graph("Round", q(spent, _PLACE), unit=SECONDS, help_text="Mean duration of a round."))
        .with_panel(
            graph(
                "Time",
                q("rate(perfd_tick_seconds_total[$__rate_interval])", f"{_PLACE} rounds"),
                q("rate(perfd_ingest_seconds_total[$__rate_interval])", f"{_PLACE} batches"),
                unit=PERCENT,
                help_text="Spent in rounds, and in applying batches; together below 100%.",
            )
        )
        .with_panel(
            graph(
                "Batches",
                q("rate(perfd_batches_total[$__rate_interval])", f"{_PLACE} received"),
                q("rate(perfd_repeated_batches_total[$__rate_interval])", f"{_PLACE} repeated"),
                unit="cps",
                help_text="Received, and of these delivered again, as after a takeover.",
            )
        )
        .with_panel(
            graph(
                "Agents whose newest batches are not stored",
                q("perfd_history_unstored_agents", _PLACE),
                unit=COUNT,
                help_text="History is slow or away while it grows.",
            )
        )
    )


def _nats(itself: Dashboard) -> Dashboard:
    return (
        itself.with_row(Row("NATS"))
        .with_panel(
            graph(
                "Lag",
                q("perfd_nats_lag_seconds", _PLACE),
                unit=SECONDS,
                help_text="How long the newest message that was read had been in the stream.",
            )
        )
        .with_panel(
            graph(
                "Messages",
                q("perfd_nats_waiting_messages", f"{_PLACE} waiting"),
                q("perfd_nats_unsettled_messages", f"{_PLACE} not stored"),
                unit=COUNT,
                help_text="In the stream and not read, and read and not stored.",
            )
        )
        .with_panel(
            graph(
                "Interruptions",
                q("increase(perfd_nats_interruptions_total[$__rate_interval])", _PLACE),
                unit=COUNT,
                help_text="Reading ended: server or connection lost, consumer removed, client too slow.",
            )
        )
        .with_panel(
            graph(
                "Without the stream",
                q("increase(perfd_nats_direct_messages_total[$__rate_interval])", f"{_PLACE} taken directly"),
                q("increase(perfd_resent_batches_total[$__rate_interval])", f"{_PLACE} sent again"),
                unit=COUNT,
                help_text="While the stream has no leader; agents send again what is not acknowledged.",
            )
        )
        .with_panel(
            graph(
                "Set aside",
                q("increase(perfd_nats_refused_messages_total[$__rate_interval])", _PLACE),
                unit=COUNT,
                help_text="Messages that could not be taken; the stream for refused ones has them.",
            )
        )
    )


def _group(itself: Dashboard) -> Dashboard:
    moves = "changes(max by (perfd_partition) (perfd_partition_epoch)[15m:30s])"
    return (
        itself.with_row(Row("Group and gateways"))
        .with_panel(
            graph(
                "Members",
                q("max(perfd_group_members)", "aggregators"),
                unit=COUNT,
                help_text="Aggregators in the group.",
            )
        )
        .with_panel(
            graph(
                "Partitions by holder",
                q("sum by (instance) (perfd_partition_lease_held)", "{{instance}}"),
                unit=COUNT,
                stacked=True,
                help_text="Partitions whose lease is valid.",
            )
        )
        .with_panel(
            graph(
                "Moves in 15 minutes",
                q(moves, "partition {{perfd_partition}}"),
                unit=COUNT,
                help_text="How often a partition changed its aggregator.",
            )
        )
        .with_panel(
            graph(
                "Gateways",
                q("perfd_gateway_agents", "{{instance}} agents"),
                q("perfd_gateway_unacknowledged_messages", "{{instance}} not acknowledged"),
                unit=COUNT,
                help_text="Agents of each gateway, and messages for which it awaits NATS.",
            )
        )
    )


def _exports(itself: Dashboard) -> Dashboard:
    return itself.with_row(Row("Exporters")).with_panel(
        graph(
            "Rounds that wait",
            q(f"perfd_exporter_queued_rounds{{{_EXPORTER}}}", "{{exporter}}"),
            unit=COUNT,
            help_text="Beyond 30 the oldest are dropped.",
        )
    )
