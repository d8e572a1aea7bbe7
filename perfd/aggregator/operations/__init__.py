"""NCCL operations per job as arrays, the steps that they show, and what the hosts of ranks waited for."""

from perfd.aggregator.operations.host_wait_readings import HOST_COLUMNS, HostWaitReadings
from perfd.aggregator.operations.job_communication import JobCommunication
from perfd.aggregator.operations.launch_readings import LAUNCH_COLUMNS, LaunchReadings
from perfd.aggregator.operations.steps_by_operations import (
    HANDED_ON,
    FoundSteps,
    OperationSteps,
    StepMarks,
)

__all__ = [
    "HANDED_ON",
    "HOST_COLUMNS",
    "LAUNCH_COLUMNS",
    "FoundSteps",
    "HostWaitReadings",
    "JobCommunication",
    "LaunchReadings",
    "OperationSteps",
    "StepMarks",
]
