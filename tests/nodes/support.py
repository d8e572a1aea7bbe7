"""Ledgers in a line each."""

from perfd.nodes import Incident, IncidentKind, NodeLedger, Scheduler, standings

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0
HALF_LIFE_S = 14 * DAY_S


def ledger(*nodes, hours=100.0, gpus=8, kind="NVIDIA H200", scheduler=Scheduler.SLURM):
    """A ledger of nodes that served jobs for so many hours."""
    made = NodeLedger(HALF_LIFE_S)
    for node in nodes:
        add_node(made, node, hours=hours, gpus=gpus, kind=kind, scheduler=scheduler)
    return made


def add_node(known, node, *, hours=100.0, gpus=8, kind="NVIDIA H200", scheduler=Scheduler.SLURM):
    """One more node."""
    uuids = {str(gpu): f"GPU-{node}-{gpu}" for gpu in range(gpus)}
    known.describe(node, kind=kind, scheduler=scheduler, uuids=uuids)
    known.observe(node, {str(gpu): hours * 3600 for gpu in range(gpus)}, NOW_S)


def incident(node, *, job="j", gpu="3", kind=IncidentKind.STRAGGLER, at_s=NOW_S, seen_s=60.0, **fields):
    """An incident that was long enough to count."""
    return Incident(
        node=node, gpu=gpu, kind=kind, job=job, first_unix_s=at_s, last_unix_s=at_s, seen_s=seen_s, **fields
    )


def standing(known, node, now_s=NOW_S):
    """How a node stands."""
    return next(one for one in standings(known, now_s) if one.node == node)
