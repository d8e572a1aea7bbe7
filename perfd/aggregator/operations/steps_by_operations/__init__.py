"""Steps of a job whose log shows none, found among its NCCL operations."""

from perfd.aggregator.operations.steps_by_operations.exact_steps import FoundSteps
from perfd.aggregator.operations.steps_by_operations.operation_steps import HANDED_ON, OperationSteps
from perfd.aggregator.operations.steps_by_operations.step_marks import StepMarks

__all__ = ["HANDED_ON", "FoundSteps", "OperationSteps", "StepMarks"]
