"""What perfd found to limit a job: one form, one set of kinds, one advice per cause, live and in traces.

Pure, and free of numpy: traces and servers use it too.
"""

from perfd.analysis.findings.causal_graph import computation_leads, ranked
from perfd.analysis.findings.fault_history import FaultHistory, FaultPeriod
from perfd.analysis.findings.finding import Culprit, Effect, Finding, certainty_of, finding_json
from perfd.analysis.findings.finding_kind import FAULTS, Kind, limits_job
from perfd.analysis.findings.framework_options import (
    OptionsOf,
    Software,
    fitted,
    is_set,
    software_of,
    unset_options,
)
from perfd.analysis.findings.headline_hysteresis import steady_verdict
from perfd.analysis.findings.lasting_fault import (
    LastingFault,
    is_over_by_steps,
    with_lasting_fault,
    without_last_of_late_hosts,
)
from perfd.analysis.findings.verdict import Moment, Verdict
from perfd.analysis.findings.whole_job import of_whole_job

__all__ = [
    "FAULTS",
    "Culprit",
    "Effect",
    "FaultHistory",
    "FaultPeriod",
    "Finding",
    "Kind",
    "LastingFault",
    "Moment",
    "OptionsOf",
    "Software",
    "Verdict",
    "certainty_of",
    "computation_leads",
    "finding_json",
    "fitted",
    "is_over_by_steps",
    "is_set",
    "limits_job",
    "of_whole_job",
    "ranked",
    "software_of",
    "steady_verdict",
    "unset_options",
    "with_lasting_fault",
    "without_last_of_late_hosts",
]
