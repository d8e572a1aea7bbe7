"""Runs the collectors of a node on schedule and packs their records into batches."""

from perfd.agent.collection.batch_pace import BatchPace, in_other_intervals
from perfd.agent.collection.batcher import Batcher, Tap
from perfd.agent.collection.collector_runner import Runner
from perfd.agent.collection.collector_task import CollectorTask, TaskState
from perfd.agent.collection.installed_collectors import create_tasks
from perfd.agent.collection.latest_samples import LatestSamples

__all__ = [
    "BatchPace",
    "Batcher",
    "CollectorTask",
    "LatestSamples",
    "Runner",
    "Tap",
    "TaskState",
    "create_tasks",
    "in_other_intervals",
]
