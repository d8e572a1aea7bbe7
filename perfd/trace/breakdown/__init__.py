"""Where the time of each rank went: kernels, collectives, ranges, idle time."""

from perfd.trace.breakdown.collective_matching import CollectiveRow, Collectives, collectives
from perfd.trace.breakdown.critical_path import CriticalPath, critical_path
from perfd.trace.breakdown.cuda_graph_launches import graph_launches
from perfd.trace.breakdown.cuda_graph_use import GraphUse, graph_use
from perfd.trace.breakdown.gpu_time_by_range import PhaseRow, phase_rows, range_rows
from perfd.trace.breakdown.idle_time import HOST_WAIT_NS, launching_call
from perfd.trace.breakdown.kernel_table import KernelRow, LaunchCost, busy_by_class, kernel_rows, launch_cost
from perfd.trace.breakdown.loader_time import LoaderTime, loader_time
from perfd.trace.breakdown.pipeline_stages import StageStall, spans_stages, stage_of, stage_stalls
from perfd.trace.breakdown.rank_breakdown import RankBreakdown, RankTimeline
from perfd.trace.breakdown.sync_points import SyncPoint, sync_points

__all__ = [
    "HOST_WAIT_NS",
    "CollectiveRow",
    "Collectives",
    "CriticalPath",
    "GraphUse",
    "KernelRow",
    "LaunchCost",
    "LoaderTime",
    "PhaseRow",
    "RankBreakdown",
    "RankTimeline",
    "StageStall",
    "SyncPoint",
    "busy_by_class",
    "collectives",
    "critical_path",
    "graph_launches",
    "graph_use",
    "kernel_rows",
    "launch_cost",
    "launching_call",
    "loader_time",
    "phase_rows",
    "range_rows",
    "spans_stages",
    "stage_of",
    "stage_stalls",
    "sync_points",
]
