"""Whatever is written, both databases give the same answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import msgspec
import pytest
from aggregator.support import START_S, fleet, source
from history.support import SqliteLocation, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire.records import RECORDS, of

from perfd.aggregator.history.history_rows import (
    agent_row,
    alert_row,
    capture_row,
    engine_row,
    exporter_row,
    job_rows,
    node_memory_row,
    retention_row,
    rows,
    summary_row,
)
from perfd.aggregator.state import AgentState
from perfd.model import Alert, AlertState, CollectiveTimes
from perfd.rules.rule_model import EngineState
from tests.support.examples import examples

pytestmark = pytest.mark.system

_NAMES = st.sampled_from(["a", "b", "b b", "ä€", "quote'", "100%s", "?"])
_TIMES = st.floats(START_S, START_S + 9e6)
_KINDS = {kind: message for kind, message in RECORDS.items() if kind is not CollectiveTimes}


@st.composite
def _records(draw):
    """What records of the wire write, with the row of their attempt before them."""
    record = draw(st.one_of(*(of(kind, message) for kind, message in _KINDS.items())))
    now_s, attempt = draw(_TIMES), draw(st.integers(1, 3))
    job = draw(_NAMES)
    statements = []
    for item in fleet().apply([record], source(now_s=now_s - START_S, node=draw(_NAMES))):
        kept = replace(item, job=job, attempt=attempt)
        statements += job_rows(job, attempt, draw(st.none() | _TIMES), now_s)
        statements += rows(kept, now_s)
    return statements


@st.composite
def _alerts(draw):
    alert = Alert(
        name=draw(_NAMES),
        labels={"perfd_job": draw(_NAMES)},
        state=draw(st.sampled_from(AlertState)),
        value=draw(st.none() | st.floats(allow_nan=False)),
        fired_at_unix_s=draw(_TIMES),
        active_at_unix_s=draw(_TIMES),
        first_step=draw(st.none() | st.integers(0, 2**62)),
    )
    return [alert_row(alert, draw(_TIMES))]


_AGENTS = st.builds(
    lambda name, node, left, sequence, now_s: [
        agent_row(AgentState(agent_id=name, node=node, left=left), sequence, now_s)
    ],
    _NAMES,
    _NAMES,
    st.booleans(),
    st.integers(0, 2**62),
    _TIMES,
)
_WRITTEN = st.one_of(
    _records(),
    _alerts(),
    _AGENTS,
    st.builds(lambda name, body: [exporter_row(name, body)], _NAMES, st.binary(max_size=9)),
    st.builds(lambda name, time_s: [capture_row(name, time_s, b'{"id": 1}')], _NAMES, _TIMES),
    st.builds(lambda name, time_s: [node_memory_row(name, "drain", "k", time_s, {})], _NAMES, _TIMES),
    st.builds(lambda job, attempt: [summary_row(job, attempt, {"name": job})], _NAMES, st.integers(1, 3)),
    st.builds(lambda time_s: [engine_row(EngineState(time_unix_s=time_s))], _TIMES),
    st.builds(lambda time_s: [retention_row(time_s)], _TIMES),
)


_GROUPS = st.lists(_WRITTEN, max_size=6).map(lambda written: list(chain.from_iterable(written)))
"""What is written in one transaction."""


def answers(history):
    """All that is asked of a history."""
    names = ["a", "b", "b b", "ä€", "quote'", "100%s", "?"]
    return {
        "agents": sorted(map(repr, history.agents())),
        "facts": sorted(map(repr, history.node_facts())),
        "origins": sorted(map(repr, history.origins())),
        "jobs": sorted(
            # Events of one time have no order.
            repr(replace(job, events=sorted(map(repr, job.events))))
            for job in history.jobs_since(START_S + 1e6, steps=3, phases=3)
        ),
        "alerts": sorted(map(repr, history.alerts(limit=99))),
        "engine": history.engine_state(),
        "exporters": [history.exporter_state(name) for name in names],
        "captures": sorted(map(repr, history.captures(msgspec.json.decode, limit=99))),
        "steps": [history.steps(name, first_step=1, limit=5) for name in names],
        "summaries": [history.summary(name) for name in names],
        "ended": [history.ended_jobs(words, ["b"], offset=0, limit=9) for words in ((), ("b",), ("%",))],
        "failed": (history.failed_rows, history.damaged_rows),
    }


@pytest.mark.timeout(900)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(15))
@given(
    groups=st.lists(
        st.lists(_WRITTEN, max_size=6).map(lambda written: list(chain.from_iterable(written))), max_size=4
    )
)
def test_both_databases_give_the_same_answers(postgres, tmp_path_factory, groups):
    postgres.renew()
    histories = [SqliteLocation(tmp_path_factory.mktemp("same")).store(), postgres.store()]
    found = []
    for history in histories:
        for group in groups:
            write(history, *group)
        found.append(answers(history))
        history.close()
    assert found[0] == found[1]
