"""Metrics about a job's NCCL communication, and about waiting ranks and stragglers."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.metric_info import JOB, MetricInfo, metric

_PLUGIN = "perfd's NCCL plugin"
_NO_PLUGIN = "Without the plugin on all ranks, or before NCCL 2.27, which reports no GPU time."

NCCL_METRICS: Sequence[MetricInfo] = (
    metric(
        "perfd_nccl_share_ratio",
        "Share of time with an NCCL kernel on the GPU, waiting and overlap included; mean over ranks.",
        labels=JOB,
        source=_PLUGIN,
        absent=_NO_PLUGIN,
    ),
    metric(
        "perfd_nccl_transfer_ratio",
        "The part of perfd_nccl_share_ratio spent transferring data.",
        labels=JOB,
        source=_PLUGIN,
        absent="As perfd_nccl_share_ratio, or when a rank has fewer than 20 matched operations.",
    ),
    metric(
        "perfd_nccl_wait_ratio",
        "The part of perfd_nccl_share_ratio spent waiting for other ranks.",
        labels=JOB,
        source=_PLUGIN,
        absent="As perfd_nccl_transfer_ratio.",
    ),
    metric(
        "perfd_nccl_missing_ranks",
        "Ranks without NCCL timings, while others have them.",
        labels=JOB,
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="When no rank has NCCL timings.",
    ),
    metric(
        "perfd_nccl_bus_bytes_per_second",
        "Median bus bandwidth of transfers (nccl-tests' convention), by dimension and operation.",
        labels=(*JOB, "group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="Without messages of at least 64 KiB, or when their size is unknown.",
    ),
    metric(
        "perfd_nccl_expected_bus_bytes_per_second",
        "Expected bus bandwidth from the links by the ring formula, of the dimension's busiest communicator.",
        labels=(*JOB, "group", "operation"),
        source="perfd.analysis: NVLink by GPU model, network by its ports or as configured",
        absent="When the placement of ranks, or their links, are unknown.",
    ),
    metric(
        "perfd_nccl_transfer_seconds",
        "Median transfer time without waiting, by dimension and operation.",
        labels=(*JOB, "group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="When no operation could be matched over all ranks.",
    ),
    metric(
        "perfd_nccl_group_share_ratio",
        "Share of time in these kernels, waiting included; mean over ranks.",
        labels=(*JOB, "group", "operation"),
        source="perfd's NCCL plugin",
        absent="As perfd_nccl_share_ratio.",
    ),
    metric(
        "perfd_nccl_group_wait_ratio",
        "Share of the time in these kernels spent waiting for other ranks.",
        labels=(*JOB, "group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="As perfd_nccl_transfer_seconds.",
    ),
    metric(
        "perfd_link_slowdown_ratio",
        "Actual over achievable transfer time of a group; of the 16 costliest groups.",
        labels=(*JOB, "group", "operation", "communicator"),
        source="perfd.analysis, by the group's own earlier rate, its peer groups, or the links of a node",
        absent="When no group is slow.",
    ),
    metric(
        "perfd_rank_wait_ratio",
        "Share of time in which a rank waits for others in NCCL kernels.",
        labels=(*JOB, "rank"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="With fewer than 20 matched operations; of more than 1,024 ranks, all but the extremes.",
    ),
    metric(
        "perfd_rank_gain_ratio",
        "Share of a step that would be saved if the rank were as fast as its peers, which do the same work.",
        labels=(*JOB, "rank"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="As perfd_rank_wait_ratio, or without peers (one replica), or with an unknown layout.",
    ),
    metric(
        "perfd_rank_slowdown_ratio",
        "A rank's time over that of its peers: compute by timers, else time not waited; 1.2 is 20% slower.",
        labels=(*JOB, "rank"),
        source="timers by rank, else perfd's NCCL plugin",
        absent="When neither covers all peers.",
    ),
)
