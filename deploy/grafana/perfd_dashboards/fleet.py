"""All jobs and nodes at once: which need attention."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from perfd_dashboards.panels import (
    BY_JOB,
    COUNT,
    PERCENT,
    PLACE,
    SECONDS,
    Column,
    board,
    choice,
    firing,
    graph,
    number,
    page_link,
    place_choices,
    q,
    rows,
)

_JOB = f'{PLACE}, perfd_job=~"$job"'
_NODE = '{node=~"$node"}'
_JOBS = f"perfd_job_ended{{{PLACE}}}"


def dashboard() -> Dashboard:
    """The dashboard `perfd-fleet`."""
    fleet = board("fleet", "perfd: fleet", "Every job and node that an aggregator of perfd knows.")
    for variable in place_choices("perfd_job_ended"):
        fleet = fleet.with_variable(variable)
    fleet = fleet.with_variable(choice("job", "Job", f"label_values({_JOBS}, perfd_job)", many=True))
    fleet = fleet.with_variable(choice("node", "Node", "label_values(perfd_agent_up, node)", many=True))
    fleet = fleet.link(page_link("Page", "/"))
    for panel in (_numbers, _jobs, _graphs, _use, _nodes):
        fleet = panel(fleet)
    return fleet


def _numbers(fleet: Dashboard) -> Dashboard:
    return (
        fleet.with_panel(
            number(
                "Jobs that run",
                f"count(perfd_job_ended{{{_JOB}}} == 0)",
                unit=COUNT,
                none="0",
                help_text="Jobs that have not ended.",
            )
        )
        .with_panel(
            number(
                "GPUs in jobs",
                f"sum(perfd_job_ranks{{{_JOB}}} and on ({BY_JOB}) perfd_job_ended == 0)",
                unit=COUNT,
                none="0",
                help_text="Ranks of these jobs.",
            )
        )
        .with_panel(
            number(
                "Agents connected",
                "sum(perfd_agents_connected)",
                unit=COUNT,
                help_text="Agents with an open stream to their aggregator.",
            )
        )
        .with_panel(
            number(
                "Agents away",
                "count(perfd_agent_up == 0)",
                unit=COUNT,
                bad_from=1,
                none="0",
                help_text="Nodes whose agent was connected and is not now.",
            )
        )
        .with_panel(
            number(
                "Alerts firing",
                f"sum({firing(_JOB)})",
                unit=COUNT,
                bad_from=1,
                none="0",
                help_text="About jobs, by perfd's own engine or Prometheus.",
            )
        )
        .with_panel(
            number(
                "Batches lost",
                "sum(perfd_lost_batches_total) - sum(perfd_late_batches_total)",
                unit=COUNT,
                bad_from=1,
                help_text="Batches of agents that never came, since the aggregator started.",
            )
        )
    )


def _jobs(fleet: Dashboard) -> Dashboard:
    columns = (
        Column(title="GPUs", expr=f"max by ({BY_JOB}) (perfd_job_ranks{{{_JOB}}})", unit=COUNT),
        Column(title="Step", expr=f"max by ({BY_JOB}) (perfd_step{{{_JOB}}})", unit="none"),
        Column(
            title="Step time", expr=f"max by ({BY_JOB}) (perfd_step_time_seconds{{{_JOB}}})", unit=SECONDS
        ),
        Column(title="MFU", expr=f"max by ({BY_JOB}) (perfd_mfu_ratio{{{_JOB}}})", unit=PERCENT),
        Column(title="Tokens/s", expr=f"max by ({BY_JOB}) (perfd_tokens_per_second{{{_JOB}}})", unit=COUNT),
        Column(
            title="Communication",
            expr=f"max by ({BY_JOB}) (perfd_communication_share_ratio{{{_JOB}}})",
            unit=PERCENT,
        ),
        Column(
            title="Stall",
            expr=f'max by ({BY_JOB}) (perfd_pipeline_stall_ratio{{{_JOB}, stage=""}})',
            unit=PERCENT,
        ),
        Column(title="Goodput", expr=f"max by ({BY_JOB}) (perfd_goodput_ratio{{{_JOB}}})", unit=PERCENT),
        Column(title="Alerts", expr=f"sum by ({BY_JOB}) ({firing(_JOB)})", unit=COUNT),
    )
    return fleet.with_row(Row("Jobs")).with_panel(
        rows(
            "Jobs",
            "Job",
            "perfd_job",
            columns,
            help_text="The newest numbers of each job; its name leads to its dashboard.",
            link="/d/perfd-job?var-job=${__value.raw:percentencode}&${cluster:queryparam}&${namespace:queryparam}&${__url_time_range}",
        )
    )


def _graphs(fleet: Dashboard) -> Dashboard:
    return (
        fleet.with_panel(
            graph(
                "Lowest MFU",
                q(f"bottomk(10, perfd_mfu_ratio{{{_JOB}}})", "{{perfd_job}}"),
                unit=PERCENT,
                help_text="Model FLOP/s over the dense peak of the GPUs, of ten jobs.",
            )
        )
        .with_panel(
            graph(
                "Slower than before",
                q(f"topk(10, perfd_step_time_regression_ratio{{{_JOB}}} > 0)", "{{perfd_job}}"),
                unit=PERCENT,
                help_text="Step time over the job's own baseline, of the ten jobs that fell most.",
            )
        )
        .with_panel(
            graph(
                "What costs time",
                q(f"topk(10, perfd_finding_confidence_ratio{{{_JOB}}})", "{{perfd_job}}: {{kind}}"),
                unit=PERCENT,
                most=1.0,
                help_text="Findings, and how sure they are.",
            )
        )
        .with_panel(
            graph(
                "Alerts firing",
                q(firing(_JOB), "{{perfd_job}}: {{alertname}}"),
                unit=COUNT,
                stacked=True,
                help_text="About jobs, by perfd's own engine or Prometheus.",
            )
        )
    )


def _use(fleet: Dashboard) -> Dashboard:
    """What the recording rules of deploy/prometheus/fleet.yaml hold; computed where they are not loaded."""
    tokens = f"sum by ({BY_JOB}) (perfd_tokens_per_second{{{_JOB}}})"
    power = f'sum by ({BY_JOB}) (perfd_gpu_power_watts{{{_JOB}, perfd_job!=""}})'
    running = f"unless on ({BY_JOB}) perfd_job_ended == 1"
    return (
        fleet.with_row(Row("Use of GPUs"))
        .with_panel(
            graph(
                "MFU of the last hour",
                q(
                    f"job:perfd_mfu_ratio:avg_1h{{{_JOB}}} or "
                    f"avg by ({BY_JOB}, convention) (avg_over_time(perfd_mfu_ratio{{{_JOB}}}[1h]))",
                    "{{perfd_job}}",
                ),
                unit=PERCENT,
                help_text="The mean of each job's MFU over an hour.",
            )
        )
        .with_panel(
            graph(
                "GPU activity",
                q(
                    f"job:perfd_gpu_sm_active_ratio:avg{{{_JOB}}} or "
                    f'avg by ({BY_JOB}) (perfd_gpu_sm_active_ratio{{{_JOB}, perfd_job!=""}})',
                    "{{perfd_job}}",
                ),
                unit=PERCENT,
                most=1.0,
                help_text="Share of time in which SMs have work, mean of each job's GPUs.",
            )
        )
        .with_panel(
            graph(
                "Power",
                q(f"job:perfd_gpu_power_watts:sum{{{_JOB}}} or {power}", "{{perfd_job}}"),
                unit="watt",
                stacked=True,
                help_text="Of all GPUs of each job.",
            )
        )
        .with_panel(
            graph(
                "Tokens per joule",
                q(
                    f"job:perfd_tokens_per_joule:ratio{{{_JOB}}} or "
                    f"{tokens} / on ({BY_JOB}) {power} {running}",
                    "{{perfd_job}}",
                ),
                unit=COUNT,
                help_text="Tokens for each joule of the job's GPUs, while it runs.",
            )
        )
    )


def _nodes(fleet: Dashboard) -> Dashboard:
    columns = (
        Column(title="Connected", expr=f"max by (node) (perfd_agent_up{_NODE})", unit="bool_yes_no"),
        Column(title="Silent", expr=f"max by (node) (perfd_agent_silent_seconds{_NODE})", unit=SECONDS),
        Column(
            title="Clock ahead",
            expr=f"max by (node) (perfd_agent_clock_offset_seconds{_NODE})",
            unit=SECONDS,
        ),
        Column(
            title="Collectors that fail",
            expr=f"sum by (node) (1 - perfd_collector_success{_NODE})",
            unit=COUNT,
        ),
        Column(
            title="Records dropped",
            expr=f"sum by (node) (perfd_agent_dropped_records_total{_NODE})",
            unit=COUNT,
        ),
    )
    return fleet.with_row(Row("Nodes")).with_panel(
        rows(
            "Nodes",
            "Node",
            "node",
            columns,
            help_text="What the aggregator knows of each agent; the node's name leads to its dashboard.",
            link="/d/perfd-node?var-node=${__value.raw:percentencode}&${__url_time_range}",
        )
    )
