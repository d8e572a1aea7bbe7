"""What a step would gain if a rank were as fast as its peers: its operations, replayed without its excess."""

from perfd.analysis.counterfactual.fault_onset import (
    LateStretch,
    StepChange,
    is_over,
    late_steps,
    late_stretch,
    step_change,
    takes_turns,
)
from perfd.analysis.counterfactual.gain_by_step import (
    excess_by_step,
    gains_by_step,
    latest_excess_by_step,
    trimmed_mean,
)
from perfd.analysis.counterfactual.late_together import (
    LateSet,
    WaitsOfPeers,
    late_ranks_together,
)
from perfd.analysis.counterfactual.slow_by_own_past import SlowSince, became_longer, slow_since
from perfd.analysis.counterfactual.stalling_rank import PeriodicStalls, periodic_stalls, stalled_steps

__all__ = [
    "LateSet",
    "LateStretch",
    "PeriodicStalls",
    "SlowSince",
    "StepChange",
    "WaitsOfPeers",
    "became_longer",
    "excess_by_step",
    "gains_by_step",
    "is_over",
    "late_ranks_together",
    "late_steps",
    "late_stretch",
    "latest_excess_by_step",
    "periodic_stalls",
    "slow_since",
    "stalled_steps",
    "step_change",
    "takes_turns",
    "trimmed_mean",
]
