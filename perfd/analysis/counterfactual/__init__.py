"""What a step would gain if a rank were as fast as its peers: its operations, replayed without its excess."""

from perfd.analysis.counterfactual.fault_onset import change_ratio, steps_since
from perfd.analysis.counterfactual.gain_by_step import error_of_gains, gains_by_step, trimmed_mean
from perfd.analysis.counterfactual.own_history import SlowSince, slow_since
from perfd.analysis.counterfactual.stalling_rank import PeriodicStalls, periodic_stalls, stalled_steps

__all__ = [
    "PeriodicStalls",
    "SlowSince",
    "change_ratio",
    "error_of_gains",
    "gains_by_step",
    "periodic_stalls",
    "slow_since",
    "stalled_steps",
    "steps_since",
    "trimmed_mean",
]
