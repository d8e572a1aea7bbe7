"""What perfd found to limit a job: one form, one set of kinds, one advice per cause, live and in traces.

Pure, and free of numpy: traces and servers use it too.
"""

from perfd.analysis.findings.causal_graph import computation_leads, ranked
from perfd.analysis.findings.finding import Culprit, Effect, Finding, finding_json
from perfd.analysis.findings.finding_kind import FAULTS, Kind

__all__ = [
    "FAULTS",
    "Culprit",
    "Effect",
    "Finding",
    "Kind",
    "computation_leads",
    "finding_json",
    "ranked",
]
