"""What is exported of a job's communication by NCCL, and of ranks that wait and are waited for."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.metric_info import MetricInfo, metric

_JOB = ("job",)
_PLUGIN = "perfd's NCCL plugin"
_NO_PLUGIN = "Without the plugin on all ranks, or with an NCCL before 2.27, which tells no GPU time."

NCCL_METRICS: Sequence[MetricInfo] = (
    metric(
        "perfd_nccl_share_ratio",
        "Share of time with an NCCL kernel on the GPU, waiting and hidden parts included; mean over ranks.",
        labels=_JOB,
        source=_PLUGIN,
        absent=_NO_PLUGIN,
    ),
    metric(
        "perfd_nccl_transfer_ratio",
        "The part of perfd_nccl_share_ratio that moves data.",
        labels=_JOB,
        source=_PLUGIN,
        absent="As perfd_nccl_share_ratio, or a rank has fewer than 20 matched operations.",
    ),
    metric(
        "perfd_nccl_wait_ratio",
        "The part of perfd_nccl_share_ratio that waits for other ranks.",
        labels=_JOB,
        source=_PLUGIN,
        absent="As perfd_nccl_transfer_ratio.",
    ),
    metric(
        "perfd_nccl_missing_ranks",
        "Ranks of the job without NCCL timings, although others have them.",
        labels=_JOB,
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="No rank has NCCL timings.",
    ),
    metric(
        "perfd_nccl_bus_bytes_per_second",
        "Bus bandwidth of transfers (nccl-tests' convention), by dimension and operation; the median.",
        labels=(*_JOB, "group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="No message of 64 KiB or more, or its size is unknown.",
    ),
    metric(
        "perfd_nccl_expected_bus_bytes_per_second",
        "Bus bandwidth that links allow by the ring formula, of the dimension's busiest communicator.",
        labels=(*_JOB, "group", "operation"),
        source="perfd.analysis: NVLink by the GPU's model, the network by its ports or as it was configured",
        absent="It is not known where the ranks are, or what joins them.",
    ),
    metric(
        "perfd_nccl_transfer_seconds",
        "Median transfer of an operation, waiting taken off, by dimension and operation.",
        labels=(*_JOB, "group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="No operation could be matched over all ranks.",
    ),
    metric(
        "perfd_nccl_group_share_ratio",
        "Share of time that a rank of these groups is in these kernels, waiting included; the mean.",
        labels=(*_JOB, "group", "operation"),
        source="perfd's NCCL plugin",
        absent="As perfd_nccl_share_ratio.",
    ),
    metric(
        "perfd_nccl_group_wait_ratio",
        "Share of the time in these kernels that is waiting for other ranks.",
        labels=(*_JOB, "group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="As perfd_nccl_transfer_seconds.",
    ),
    metric(
        "perfd_link_slowdown_ratio",
        "How many times as long as they could a group's transfers take; of the 16 costliest groups.",
        labels=(*_JOB, "group", "operation", "communicator"),
        source="perfd.analysis, by the group's own earlier pace, its sisters, or the links of a node",
        absent="No group is slow.",
    ),
    metric(
        "perfd_rank_wait_ratio",
        "Share of time that a rank waits for others in NCCL's kernels.",
        labels=(*_JOB, "rank"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="Fewer than 20 matched operations; of more than 1,024 ranks, all but those at either end.",
    ),
    metric(
        "perfd_wait_caused_ratio",
        "What the peers of a rank lose by it at least, by all time; peers are ranks of its stage.",
        labels=(*_JOB, "rank"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="As perfd_rank_wait_ratio, or a rank of the stage is missing, or the layout is unknown.",
    ),
    metric(
        "perfd_rank_slowdown_ratio",
        "A rank's time by that of its peers: compute by timers, else time not waited; 1.2 is 20% slower.",
        labels=(*_JOB, "rank"),
        source="timers by rank, else perfd's NCCL plugin",
        absent="Neither tells of all peers.",
    ),
)
