"""What nodes were blamed for over all jobs, who is worse than its peers, and what to do about it. Pure."""

from perfd.nodes.drain_advice import drain_command, drainable, reason_of
from perfd.nodes.drain_policy import DONE, Drain, DrainLimits, drains_due
from perfd.nodes.finding_blame import blames_of
from perfd.nodes.incidents import Incident, IncidentKind, decayed
from perfd.nodes.node_ledger import NodeLedger, NodeRecord, Scheduler
from perfd.nodes.suspicion import NodeStanding, Standing, standings, suspect_probability

__all__ = [
    "DONE",
    "Drain",
    "DrainLimits",
    "Incident",
    "IncidentKind",
    "NodeLedger",
    "NodeRecord",
    "NodeStanding",
    "Scheduler",
    "Standing",
    "blames_of",
    "decayed",
    "drain_command",
    "drainable",
    "drains_due",
    "reason_of",
    "standings",
    "suspect_probability",
]
