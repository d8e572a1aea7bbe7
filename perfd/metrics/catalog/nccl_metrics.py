"""Metrics about a job's NCCL communication, and about waiting ranks and stragglers."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.metric_info import MetricInfo, of_job

_PLUGIN = "perfd's NCCL plugin"
_NO_PLUGIN = "Without the plugin on all ranks, or before NCCL 2.27, which reports no GPU time."

NCCL_METRICS: Sequence[MetricInfo] = (
    of_job(
        "perfd_nccl_share_ratio",
        "Share of time with an NCCL kernel on the GPU, waiting and overlap included; mean over ranks.",
        source=_PLUGIN,
        absent=_NO_PLUGIN,
    ),
    of_job(
        "perfd_nccl_transfer_ratio",
        "The part of perfd_nccl_share_ratio spent transferring data.",
        source=_PLUGIN,
        absent="As perfd_nccl_share_ratio, or when a rank has fewer than 20 matched operations.",
    ),
    of_job(
        "perfd_nccl_wait_ratio",
        "The part of perfd_nccl_share_ratio spent waiting for other ranks.",
        source=_PLUGIN,
        absent="As perfd_nccl_transfer_ratio.",
    ),
    of_job(
        "perfd_nccl_missing_ranks",
        "Ranks without NCCL timings, while others have them.",
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="When no rank has NCCL timings.",
    ),
    of_job(
        "perfd_nccl_bus_bytes_per_second",
        "Median bus bandwidth of transfers (nccl-tests' convention), by dimension and operation.",
        labels=("group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="Without messages of at least 64 KiB, or when their size is unknown.",
    ),
    of_job(
        "perfd_nccl_expected_bus_bytes_per_second",
        "Expected bus bandwidth from the links by the ring formula, of the dimension's busiest communicator.",
        labels=("group", "operation"),
        source="perfd.analysis: NVLink by GPU model, network by its ports or as configured",
        absent="When the placement of ranks, or their links, are unknown.",
    ),
    of_job(
        "perfd_nccl_transfer_seconds",
        "Median transfer time without waiting, by dimension and operation.",
        labels=("group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="When no operation could be matched over all ranks.",
    ),
    of_job(
        "perfd_nccl_group_share_ratio",
        "Share of time in these kernels, waiting included; mean over ranks.",
        labels=("group", "operation"),
        source="perfd's NCCL plugin",
        absent="As perfd_nccl_share_ratio.",
    ),
    of_job(
        "perfd_nccl_group_wait_ratio",
        "Share of the time in these kernels spent waiting for other ranks.",
        labels=("group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="As perfd_nccl_transfer_seconds.",
    ),
    of_job(
        "perfd_link_slowdown_ratio",
        "Actual over achievable transfer time of a group; of the 16 costliest groups.",
        labels=("group", "operation", "communicator"),
        source="perfd.analysis, by the group's own earlier rate, its peer groups, or the links of a node",
        absent="When no group is slow.",
    ),
    of_job(
        "perfd_rank_wait_ratio",
        "Share of time in which a rank waits for others in NCCL kernels.",
        labels=("rank",),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="With fewer than 20 matched operations; of more than 1,024 ranks, all but 256 at either end.",
    ),
    of_job(
        "perfd_rank_gain_ratio",
        "Share of a step that would be saved if the rank were as fast as its peers, which do the same work.",
        labels=("rank",),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="As perfd_rank_wait_ratio, or without peers (one replica), or with an unknown layout.",
    ),
    of_job(
        "perfd_rank_slowdown_ratio",
        "A rank's time over that of its peers: compute by timers, else time not waited; 1.2 is 20% slower.",
        labels=("rank",),
        source="timers by rank, else perfd's NCCL plugin",
        absent="When neither covers all peers.",
    ),
)
