"""What a step would gain if a rank were as fast as its peers: its operations, replayed without its excess."""

from perfd.analysis.counterfactual.excess_replay import gains_by_step, trimmed_mean
from perfd.analysis.counterfactual.fault_onset import change_ratio, steps_since

__all__ = ["change_ratio", "gains_by_step", "steps_since", "trimmed_mean"]
