"""Compares ranks with their peers: who is slower, who arrives late."""

from perfd.analysis.stragglers.expert_imbalance import ExpertImbalance, expert_imbalance
from perfd.analysis.stragglers.host_contention import HostContention, cpu_wait_of_all, host_contention
from perfd.analysis.stragglers.peer_comparison import (
    ActivityComparison,
    Pattern,
    Straggler,
    compare_activity,
    stragglers_by_timers,
)
from perfd.analysis.stragglers.periodic_stall import PeriodicStall, periodic_stall
from perfd.analysis.stragglers.phase_waiting import WaitingPair, waiting_pair
from perfd.analysis.stragglers.rank_slowdown import RankSlowdown, slowdowns
from perfd.analysis.stragglers.reading_rank import (
    OwnWork,
    ReadingRank,
    computing_more,
    only_reader,
    only_readers,
    reading_rank,
)
from perfd.analysis.stragglers.sequence_imbalance import UnequalSequences, unequal_sequences
from perfd.analysis.stragglers.shared_gpus import SharedGpus, shared_gpus
from perfd.analysis.stragglers.slow_together import slow_together

__all__ = [
    "ActivityComparison",
    "ExpertImbalance",
    "HostContention",
    "OwnWork",
    "Pattern",
    "PeriodicStall",
    "RankSlowdown",
    "ReadingRank",
    "SharedGpus",
    "Straggler",
    "UnequalSequences",
    "WaitingPair",
    "compare_activity",
    "computing_more",
    "cpu_wait_of_all",
    "expert_imbalance",
    "host_contention",
    "only_reader",
    "only_readers",
    "periodic_stall",
    "reading_rank",
    "shared_gpus",
    "slow_together",
    "slowdowns",
    "stragglers_by_timers",
    "unequal_sequences",
    "waiting_pair",
]
