"""NCCL operations matched across ranks: transfer against waiting, rates, and their arrangement in steps."""

from perfd.analysis.operations.bandwidth_model import BandwidthModel, expected_of
from perfd.analysis.operations.communicator_batch import CommunicatorBatch, stacked
from perfd.analysis.operations.operation_rate import paced
from perfd.analysis.operations.p2p_timing import knows_receivers, receiver_durations_s
from perfd.analysis.operations.rank_index import RankIndex, roster
from perfd.analysis.operations.step_segmentation import AnalysisWindow, StepPeriod, StepShape
from perfd.analysis.operations.transfer_wait import (
    MATCHED_OPERATIONS,
    WaitBlame,
    blame,
    bus_bandwidth_bytes_per_s,
    bus_factor,
    split,
)

__all__ = [
    "MATCHED_OPERATIONS",
    "AnalysisWindow",
    "BandwidthModel",
    "CommunicatorBatch",
    "RankIndex",
    "StepPeriod",
    "StepShape",
    "WaitBlame",
    "blame",
    "bus_bandwidth_bytes_per_s",
    "bus_factor",
    "expected_of",
    "knows_receivers",
    "paced",
    "receiver_durations_s",
    "roster",
    "split",
    "stacked",
]
