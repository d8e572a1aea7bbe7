"""Steady steps and where their time goes: phases, GPU activity, pipeline bubble, throttling, MFU."""

from perfd.analysis.data.training_time import shows_earlier_start
from perfd.analysis.flops.mfu_tier import MfuTier
from perfd.analysis.steps.activity_by_gpu import (
    STEADY_STEPS,
    TRAINING_TIME,
    GpuActivity,
    gpu_activity,
    newest_rows,
)
from perfd.analysis.steps.arrival_times import timed_by_arrival
from perfd.analysis.steps.compute_change import ComputeChange, compute_change
from perfd.analysis.steps.critical_batch import CriticalBatch, critical_batch
from perfd.analysis.steps.fallen_activity import IdleSince, idle_since
from perfd.analysis.steps.flops_check import FlopsCheck
from perfd.analysis.steps.long_steps_cause import LongStepsCause, long_steps_cause
from perfd.analysis.steps.longer_steps import (
    LongerSteps,
    StepsSince,
    leaves_pace,
    longer_since,
    longer_steps,
    rows_of_pace,
)
from perfd.analysis.steps.mfu import Efficiency, efficiency, gpu_infos, mean_over_gpus, world_size
from perfd.analysis.steps.phase_timers import (
    BACKWARD,
    COMMUNICATION,
    DATA_PARALLEL,
    FORWARD,
    OPTIMIZER,
    POINT_TO_POINT,
    Timers,
    share,
    usual,
)
from perfd.analysis.steps.pipeline_bubble import (
    SOURCE_BY_RANK,
    Pipeline,
    Stage,
    bubble_theory_ratio,
    pipeline,
    stage_of_ranks,
)
from perfd.analysis.steps.sleeping_hosts import (
    EachStep,
    SleepingHosts,
    asleep_together,
    launches_of_training,
    sleeping_hosts,
)
from perfd.analysis.steps.steady_steps import SteadySteps, lines_are_means, steady_rows
from perfd.analysis.steps.step_time_change import StepTimeChange, newest_step_s, step_time_change
from perfd.analysis.steps.throttling import HeldClock, held_clocks
from perfd.analysis.steps.time_breakdown import (
    DataLoading,
    Memory,
    Optimizer,
    StepBreakdown,
    StepTime,
    breakdown,
    data_loading,
    goodput_ratio,
    memory,
    optimizer,
    step_time,
)

__all__ = [
    "BACKWARD",
    "COMMUNICATION",
    "DATA_PARALLEL",
    "FORWARD",
    "OPTIMIZER",
    "POINT_TO_POINT",
    "SOURCE_BY_RANK",
    "STEADY_STEPS",
    "TRAINING_TIME",
    "ComputeChange",
    "CriticalBatch",
    "DataLoading",
    "EachStep",
    "Efficiency",
    "FlopsCheck",
    "GpuActivity",
    "HeldClock",
    "IdleSince",
    "LongStepsCause",
    "LongerSteps",
    "Memory",
    "MfuTier",
    "Optimizer",
    "Pipeline",
    "SleepingHosts",
    "Stage",
    "SteadySteps",
    "StepBreakdown",
    "StepTime",
    "StepTimeChange",
    "StepsSince",
    "Timers",
    "asleep_together",
    "breakdown",
    "bubble_theory_ratio",
    "compute_change",
    "critical_batch",
    "data_loading",
    "efficiency",
    "goodput_ratio",
    "gpu_activity",
    "gpu_infos",
    "held_clocks",
    "idle_since",
    "launches_of_training",
    "leaves_pace",
    "lines_are_means",
    "long_steps_cause",
    "longer_since",
    "longer_steps",
    "mean_over_gpus",
    "memory",
    "newest_rows",
    "newest_step_s",
    "optimizer",
    "pipeline",
    "rows_of_pace",
    "share",
    "shows_earlier_start",
    "sleeping_hosts",
    "stage_of_ranks",
    "steady_rows",
    "step_time",
    "step_time_change",
    "timed_by_arrival",
    "usual",
    "world_size",
]
