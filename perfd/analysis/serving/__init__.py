"""Serving: what a server measured, what its hardware allows, and which setting closes the gap.

Pure, and free of numpy: the agent reduces histograms with it.
"""

from perfd.analysis.serving.engine_snapshot import Counter, Engine, Latency, Length, ReplicaLoad, Snapshot
from perfd.analysis.serving.histograms import Distribution, Histogram, merged
from perfd.analysis.serving.observation_window import ObservationWindow
from perfd.analysis.serving.served_model import served_model
from perfd.analysis.serving.server_config import ServerSetup, completed, from_arguments, layout_of
from perfd.analysis.serving.server_rates import ServerRates, measure
from perfd.analysis.serving.serving_diagnosis import diagnose
from perfd.analysis.serving.serving_document import ServerDocument, distribution_json, to_json
from perfd.analysis.serving.serving_theory import Theory, theory_of
from perfd.analysis.serving.theory_comparison import TheoryComparison, compare

__all__ = [
    "Counter",
    "Distribution",
    "Engine",
    "Histogram",
    "Latency",
    "Length",
    "ObservationWindow",
    "ReplicaLoad",
    "ServerDocument",
    "ServerRates",
    "ServerSetup",
    "Snapshot",
    "Theory",
    "TheoryComparison",
    "compare",
    "completed",
    "diagnose",
    "distribution_json",
    "from_arguments",
    "layout_of",
    "measure",
    "merged",
    "served_model",
    "theory_of",
    "to_json",
]
