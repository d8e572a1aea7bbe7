"""An aggregator on free ports, and records in a line each."""

import contextlib
import math

from perfd.aggregator import Aggregator
from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.fleet import Fleet
from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig, RulesConfig
from perfd.model import RankPlacement, SampleTable, Scope, TrainingStep

START_S = 1_700_000_000.0


def step(number, *, job="llm", time_s=None, step_time_s=1.0, loss=None, **fields):
    """A progress line."""
    return TrainingStep(
        job=job,
        step=number,
        time_unix_ns=None if time_s is None else round(time_s * 1e9),
        step_time_s=step_time_s,
        losses={} if loss is None else {"lm loss": loss},
        **fields,
    )


def gpus(time_s, *, count=1, scope=Scope.GPU, **columns):
    """One sweep over the GPUs of a node; a number stands for the same number of each."""
    return SampleTable(
        scope=scope,
        times_unix_ns=[round(time_s * 1e9)] * count,
        entities=[str(gpu) for gpu in range(count)],
        columns={
            name: list(value) if isinstance(value, (list, tuple)) else [value] * count
            for name, value in columns.items()
        },
    )


def place(rank, gpu, *, job="llm"):
    """Where a rank runs."""
    return RankPlacement(job=job, rank=rank, gpu=gpu)


def source(*, agent="a", node="n0", now_s=0.0, late=False):
    """Where records come from."""
    return RecordSource(agent_id=agent, node=node, sent_unix_s=START_S + now_s, now_s=now_s, late=late)


def fleet(**limits):
    """A fleet that knows nothing."""
    return Fleet(Limits(**limits), AggregatorCounters())


@contextlib.contextmanager
def aggregator(clock=None, *, limits=None, **config):
    """A started aggregator that ticks when told to; without rules unless `rules` says otherwise."""
    settings = {"listen": "127.0.0.1:0", "http_listen": None, "rules": RulesConfig(builtin=False), **config}
    running = Aggregator(
        AggregatorConfig(**settings), clock or VirtualClock(round(START_S * 1e9)), manual=True, limits=limits
    )
    running.start()
    try:
        yield running
    finally:
        running.stop()


def values(page):
    """A page as a mapping from series to value."""
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def absent(array):
    """Whether every value is NaN."""
    return all(map(math.isnan, array.ravel()))
