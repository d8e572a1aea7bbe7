"""One job: how fast it is, where a step goes, and who holds the others up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from perfd.analysis.steps import BACKWARD, FORWARD
from perfd_dashboards.panels import (
    BY_JOB,
    COUNT,
    ONE_JOB,
    PERCENT,
    PLACE,
    RATE,
    SECONDS,
    WIDTH,
    Query,
    bars,
    board,
    choice,
    firing,
    graph,
    heat,
    number,
    page_link,
    place_choices,
    q,
    text,
)

_JOB = ONE_JOB
_RANKS = f'{ONE_JOB}, rank=~"$rank"'


def dashboard() -> Dashboard:
    """The dashboard `perfd-job`."""
    job = board(
        "job", "perfd: job", "How far a job is from what the hardware allows, and where the time goes."
    )
    for variable in place_choices("perfd_job_ended"):
        job = job.with_variable(variable)
    jobs = f"label_values(perfd_job_ended{{{PLACE}}}, perfd_job)"
    job = job.with_variable(choice("job", "Job", jobs))
    job = job.with_variable(text("rank", "Ranks of heat maps", ".*"))
    job = job.link(page_link("Page", "/jobs/${job:percentencode}"))
    job = job.link(page_link("Report", "/reports/jobs/${job:percentencode}"))
    for panels in (_numbers, _speed, _step, _communication, _stages, _ranks, _gpus):
        job = panels(job)
    return job


def _numbers(job: Dashboard) -> Dashboard:
    return (
        job.with_panel(
            number(
                "MFU",
                f"max(perfd_mfu_ratio{{{_JOB}}})",
                unit=PERCENT,
                help_text="Model FLOP/s over the dense peak of the GPUs.",
            )
        )
        .with_panel(
            number(
                "Step time",
                f"perfd_step_time_seconds{{{_JOB}}}",
                unit=SECONDS,
                help_text="Median over the newest steady steps.",
            )
        )
        .with_panel(
            number(
                "Tokens/s", f"perfd_tokens_per_second{{{_JOB}}}", unit=COUNT, help_text="Of the whole job."
            )
        )
        .with_panel(
            number(
                "Goodput",
                f"perfd_goodput_ratio{{{_JOB}}}",
                unit=PERCENT,
                help_text="Share of wall time that made steps at their steady pace.",
            )
        )
        .with_panel(
            number(
                "Log silent",
                f"perfd_log_silent_seconds{{{_JOB}}}",
                unit=SECONDS,
                none="-",
                help_text="How long no log of the job had a new line: a hang, from outside.",
            )
        )
        .with_panel(
            number(
                "Alerts firing",
                f"sum({firing(_JOB)})",
                unit=COUNT,
                bad_from=1,
                none="0",
                help_text="By perfd's own engine or Prometheus; they are marked in all graphs.",
            )
        )
    )


def _speed(job: Dashboard) -> Dashboard:
    return (
        job.with_panel(
            graph(
                "MFU",
                q(f"perfd_mfu_ratio{{{_JOB}}}", "MFU"),
                q(f"perfd_hfu_ratio{{{_JOB}}}", "HFU, recomputed work counted too"),
                q(f"perfd_tensor_active_ratio{{{_JOB}}}", "tensor cores active"),
                unit=PERCENT,
                help_text="Tensor core activity is an independent check: MFU cannot be above it for long.",
            )
        )
        .with_panel(
            graph(
                "Step time",
                q(f"perfd_step_time_last_seconds{{{_JOB}}}", "newest step"),
                q(f"perfd_step_time_seconds{{{_JOB}}}", "median"),
                q(f"perfd_step_time_p95_seconds{{{_JOB}}}", "95th percentile"),
                q(f"perfd_step_time_baseline_seconds{{{_JOB}}}", "baseline"),
                unit=SECONDS,
                help_text="The baseline is the median of all steady steps before the newest ones.",
            )
        )
        .with_panel(
            graph(
                "Tokens/s",
                q(f"perfd_tokens_per_second{{{_JOB}}}", "tokens/s"),
                unit=COUNT,
                help_text="Of all GPUs.",
            )
        )
        .with_panel(
            bars(
                "What costs time",
                q(f"sort_desc(perfd_finding_confidence_ratio{{{_JOB}}})", "{{kind}}"),
                unit=PERCENT,
                help_text="Findings, and how sure they are; the report holds the evidence.",
            )
        )
    )


def _step(job: Dashboard) -> Dashboard:
    parts = _parts()
    reported = " or ".join(f'label_replace({expr}, "part", "{name}", "", "")' for name, expr in parts.items())
    step = f"max by ({BY_JOB}) (perfd_step_time_seconds{{{_JOB}}})"
    rest = f"clamp_min({step} - on ({BY_JOB}) sum by ({BY_JOB}) ({reported}), 0)"
    return job.with_row(Row("Where a step goes")).with_panel(
        graph(
            "A step",
            *(q(expr, name) for name, expr in parts.items()),
            q(rest, "waiting for other stages, and outside timers"),
            unit=SECONDS,
            stacked=True,
            span=WIDTH,
            help_text=(
                "Forward and backward are the slowest rank's. Without phase timers in the log"
                " (Megatron-LM: --timing-log-level 1 or 2) only communication and the rest are known."
            ),
        )
    )


def _parts() -> Mapping[str, str]:
    step = f"max by ({BY_JOB}) (perfd_step_time_seconds{{{_JOB}}})"
    # What compute hides costs nothing; where only the whole share is known, it is taken for exposed.
    communication = (
        f"(max by ({BY_JOB}) (perfd_communication_exposed_ratio{{{_JOB}}})"
        f" or max by ({BY_JOB}) (perfd_communication_share_ratio{{{_JOB}}}))"
    )
    optimizer = f"max by ({BY_JOB}) (perfd_optimizer_share_ratio{{{_JOB}}})"
    return {
        "forward": _phase(FORWARD),
        "backward": _phase(BACKWARD),
        "communication": f"{communication} * on ({BY_JOB}) {step}",
        "optimizer": f"{optimizer} * on ({BY_JOB}) {step}",
    }


def _phase(names: tuple[str, ...]) -> str:
    return f'max by ({BY_JOB}) (perfd_step_phase_seconds{{{_JOB}, stat="max", phase=~"{"|".join(names)}"}})'


def _communication(job: Dashboard) -> Dashboard:
    by = "{{group}} {{operation}}"
    return (
        job.with_row(Row("Communication"))
        .with_panel(
            graph(
                "Share of a step",
                q(f"perfd_communication_share_ratio{{{_JOB}}}", "communication, by {{source}}"),
                q(f"perfd_communication_exposed_ratio{{{_JOB}}}", "not hidden by compute, by {{source}}"),
                q(f"perfd_nccl_transfer_ratio{{{_JOB}}}", "transfers, by NCCL"),
                q(f"perfd_nccl_wait_ratio{{{_JOB}}}", "waiting for other ranks, by NCCL"),
                unit=PERCENT,
                help_text="What is not hidden is what can be won back at most.",
            )
        )
        .with_panel(
            graph(
                "Exposed by dimension",
                q(f"perfd_communication_dimension_exposed_ratio{{{_JOB}}}", "{{dimension}}, by {{source}}"),
                unit=PERCENT,
                help_text="Share of a step. Absent without a timer, schedule or capture that has it.",
            )
        )
        .with_panel(
            graph(
                "Bus bandwidth by dimension",
                q(f"perfd_nccl_bus_bytes_per_second{{{_JOB}}}", by),
                unit=RATE,
                help_text="Median (nccl-tests' convention), waiting taken off. Needs perfd's NCCL plugin.",
            )
        )
        .with_panel(
            graph(
                "Transfer by dimension",
                q(f"perfd_nccl_transfer_seconds{{{_JOB}}}", by),
                unit=SECONDS,
                help_text="Median of an operation, waiting taken off. Needs perfd's NCCL plugin.",
            )
        )
        .with_panel(
            graph(
                "Waiting by dimension",
                q(f"perfd_nccl_group_wait_ratio{{{_JOB}}}", by),
                unit=PERCENT,
                most=1.0,
                help_text="Share of the time in these kernels that waits for other ranks.",
            )
        )
    )


def _stages(job: Dashboard) -> Dashboard:
    return (
        job.with_row(Row("Pipeline"))
        .with_panel(
            graph(
                "Stall of stages",
                q(f'perfd_pipeline_stall_ratio{{{_JOB}, stage!=""}}', "stage {{stage}}"),
                q(f'perfd_pipeline_stall_ratio{{{_JOB}, stage=""}}', "job"),
                q(f"perfd_pipeline_bubble_theory_ratio{{{_JOB}}}", "theory, equal stages"),
                unit=PERCENT,
                help_text="Idle share of the forward-backward window.",
            )
        )
        .with_panel(
            graph(
                "Compute of stages",
                q(f"perfd_pipeline_stage_compute_seconds{{{_JOB}}}", "stage {{stage}}"),
                unit=SECONDS,
                help_text="Forward and backward per step: stages that differ make the others wait.",
            )
        )
    )


def _ranks(job: Dashboard) -> Dashboard:
    return (
        job.with_row(Row("Ranks"))
        .with_panel(
            heat(
                "Slower than their peers",
                q(f"perfd_rank_slowdown_ratio{{{_RANKS}}}", "{{rank}}"),
                unit="none",
                # The colors are the same for all jobs: noise stays light.
                least=1.0,
                most=1.5,
                help_text="A rank's time by that of its peers: 1.2 is 20% slower. Stragglers are dark.",
            )
        )
        .with_panel(
            heat(
                "Saved without their excess",
                q(f"perfd_rank_gain_ratio{{{_RANKS}}}", "{{rank}}"),
                unit=PERCENT,
                help_text="Of a step, if the rank were as fast as its peers. Needs perfd's NCCL plugin.",
            )
        )
        .with_panel(
            bars(
                "Blamed ranks",
                q(f"topk(16, perfd_culprit_confidence_ratio{{{_JOB}}})", "rank {{rank}}: {{kind}}"),
                unit=PERCENT,
                help_text="Ranks that a finding names, and how sure that is.",
            )
        )
        .with_panel(
            graph(
                "Captures",
                q(f"sum by (state) (perfd_capture_ranks{{{_JOB}}})", "{{state}}"),
                unit=COUNT,
                stacked=True,
                help_text="Ranks of remembered captures by outcome; new ones are marked in all graphs.",
            )
        )
    )


def _gpus(job: Dashboard) -> Dashboard:
    used = f"(perfd_gpu_memory_used_bytes{{{_JOB}}} / perfd_gpu_memory_total_bytes{{{_JOB}}})"
    sent = f"perfd_gpu_nvlink_tx_bytes_per_second{{{_JOB}}}"
    return (
        job.with_row(Row("GPUs"))
        .with_panel(
            heat(
                "SM active",
                q(f"max by (rank) (perfd_gpu_sm_active_ratio{{{_RANKS}}})", "{{rank}}"),
                unit=PERCENT,
                help_text="Share of streaming multiprocessors with a warp resident, by rank.",
            )
        )
        .with_panel(
            heat(
                "Tensor cores active",
                q(f"max by (rank) (perfd_gpu_tensor_active_ratio{{{_RANKS}}})", "{{rank}}"),
                unit=PERCENT,
                help_text="Share of the time in which the tensor cores worked, by rank.",
            )
        )
        .with_panel(
            graph(
                "Power",
                *_spread(f"perfd_gpu_power_watts{{{_JOB}}}"),
                unit="watt",
                help_text="Board power over all GPUs of the job.",
            )
        )
        .with_panel(
            graph(
                "SM clock",
                *_spread(f"perfd_gpu_sm_clock_hertz{{{_JOB}}}"),
                unit="hertz",
                help_text="One GPU with a lower clock than the others slows the whole job.",
            )
        )
        .with_panel(
            graph(
                "Memory in use",
                *_spread(used),
                unit=PERCENT,
                most=1.0,
                help_text="Of each GPU's own, with what the driver keeps.",
            )
        )
        .with_panel(
            graph(
                "NVLink",
                *_spread(sent),
                unit=RATE,
                help_text="Sent by a GPU over all NVLinks, protocol overhead included.",
            )
        )
    )


def _spread(series: str) -> Sequence[Query]:
    """Three lines however many GPUs there are."""
    return (
        q(f"max({series})", "most"),
        q(f"quantile(0.5, {series})", "median"),
        q(f"min({series})", "least"),
    )
