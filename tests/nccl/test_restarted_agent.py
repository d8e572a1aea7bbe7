"""An agent that is killed in mid-job: real plugin, real agent process, real stream."""

from __future__ import annotations

import itertools
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent import process as agent_process
from nccl.driver import NEEDS_GCC, driving, go_on, wait_for

from perfd.aggregator.aggregator import Aggregator
from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.findings import Kind
from perfd.config import AggregatorConfig
from perfd.model import CollectiveTimes, SampleTable, Scope
from tests.support.fake_aggregator import FakeAggregator

pytestmark = [NEEDS_GCC, pytest.mark.timeout(240)]

BURST, GAP = 20, 60
SHORT_RING, LONGER_RING = 64, 1024


class Node:
    """A node with a job's rank, which NCCL's stand-in plays, and an agent that comes and goes."""

    def __init__(self, directory: Path, address: str, name: str = "n0", **options: Any) -> None:
        self.shared_memory = directory / "shm"
        self.shared_memory.mkdir(parents=True)
        self._directory = directory
        self._address = address
        self._name = name
        self.options = options
        self.begun = 0
        self._agent: subprocess.Popen[str] | None = None

    def start_agent(self) -> None:
        """Start one in the place of the one that was killed, with its spool."""
        collectors: dict[str, Any] = {
            point.name: {"enabled": False} for point in entry_points(group="perfd.collectors")
        }
        collectors["counting"] = {"enabled": False}
        options = {"directory": str(self.shared_memory), "flight_recorder_prefix": None, "window_s": 0.2}
        collectors["nccl"] = {"options": {**options, **self.options}}
        config = agent_process.configuration(
            self._directory, self._address, node=self._name, collectors=collectors
        )
        self._agent = agent_process.start(self._directory, "--config", str(config))

    def kill_agent(self) -> None:
        """With SIGKILL."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.communicate()
            self._agent = None

    def burst(self, job: subprocess.Popen[str], count: int = 1) -> None:
        """Let the rank do so many bursts, and wait for their end."""
        for _ in range(count):
            self.begun += BURST
            go_on(job)
            wait_for(job, str(self.begun))


@pytest.fixture
def aggregator() -> Iterator[FakeAggregator]:
    with FakeAggregator() as fake:
        yield fake


@pytest.fixture
def node(tmp_path: Path, aggregator: FakeAggregator) -> Iterator[Node]:
    one = Node(tmp_path, aggregator.address)
    yield one
    one.kill_agent()


@contextmanager
def training(
    built: Path, node: Node, *, rank: int = 0, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    with driving(
        built, node.shared_memory, 5, "bursts", BURST, RANK=str(rank), WORLD_SIZE="2", **environment
    ) as job:
        wait_for(job, "0")
        yield job


def times(aggregator: FakeAggregator) -> list[CollectiveTimes]:
    return [
        record
        for batch in aggregator.batches
        for record in batch.records
        if isinstance(record, CollectiveTimes)
    ]


def kept(aggregator: FakeAggregator) -> list[int]:
    """Sequence numbers of the operations that came, in the order in which they came."""
    return [number for record in times(aggregator) for number in record.sequences]


def counter(aggregator: FakeAggregator, name: str) -> list[float]:
    return [
        value
        for batch in aggregator.batches
        for record in batch.records
        if isinstance(record, SampleTable) and record.scope is Scope.RANK
        for value in record.columns[name]
    ]


def settled(aggregator: FakeAggregator, node: Node) -> Callable[[], bool]:
    """Whether the newest reading of a rank's counters is of all that it did."""

    def is_settled() -> bool:
        return node.begun in counter(aggregator, "nccl_operations")[-1:]

    return is_settled


def came(aggregator: FakeAggregator, node: Node) -> Callable[[], bool]:
    return lambda: len(kept(aggregator)) >= node.begun


@pytest.mark.slow
def test_operations_before_in_and_after_the_time_without_an_agent_come_once_each(
    built: Path, aggregator: FakeAggregator, node: Node
) -> None:
    with training(built, node) as job:
        for _ in range(4):
            node.start_agent()
            node.burst(job)
            assert aggregator.wait_for(came(aggregator, node))
            # The agent may be anywhere between the ring and the spool with these.
            node.burst(job, 3)
            node.kill_agent()
            node.burst(job, 2)
        node.start_agent()
        assert aggregator.wait_for(settled(aggregator, node))
        assert aggregator.wait_for(came(aggregator, node))

    assert sorted(kept(aggregator)) == list(range(node.begun))
    assert sum(record.count for record in times(aggregator)) == node.begun
    assert max(counter(aggregator, "nccl_lost_operations")) == 0
    assert counter(aggregator, "nccl_operations") == sorted(counter(aggregator, "nccl_operations"))
    assert counter(aggregator, "nccl_busy_s") == sorted(counter(aggregator, "nccl_busy_s"))
    windows = [(record.start_unix_ns, record.end_unix_ns) for record in times(aggregator)]
    # Windows neither overlap nor are empty, so no time is counted twice either.
    assert all(start < end for start, end in windows)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(windows))


def test_what_the_ring_could_not_hold_meanwhile_is_counted_to_the_last_operation(
    built: Path, aggregator: FakeAggregator, node: Node
) -> None:
    with training(built, node, PERFD_NCCL_RING_ENTRIES=str(SHORT_RING)) as job:
        node.start_agent()
        node.burst(job)
        assert aggregator.wait_for(came(aggregator, node))
        node.kill_agent()
        node.burst(job, 10)
        node.start_agent()
        assert aggregator.wait_for(settled(aggregator, node))
        node.burst(job)
        assert aggregator.wait_for(settled(aggregator, node))

    numbers = kept(aggregator)
    lost = counter(aggregator, "nccl_lost_operations")
    assert len(numbers) == len(set(numbers))
    assert lost == sorted(lost)
    assert lost[-1] == node.begun - len(numbers) == 10 * BURST - (SHORT_RING - 1)


def test_a_restart_while_events_are_off_switches_them_on_and_loses_no_count(
    built: Path, aggregator: FakeAggregator, node: Node
) -> None:
    node.options = {"gpu_time": False}
    with training(built, node) as job:
        node.start_agent()
        while not kept(aggregator) or len(kept(aggregator)) == node.begun:
            # Times are on until the first window ends: until there are operations without.
            node.burst(job)
            assert aggregator.wait_for(settled(aggregator, node))
        node.kill_agent()
        untimed = node.begun
        node.burst(job, 2)
        node.options = {}
        node.start_agent()
        assert aggregator.wait_for(settled(aggregator, node))
        while max(kept(aggregator)) < untimed + 2 * BURST:
            node.burst(job)
            assert aggregator.wait_for(settled(aggregator, node))

    numbers = kept(aggregator)
    assert len(numbers) == len(set(numbers))
    assert not set(numbers) & set(range(untimed, untimed + 2 * BURST))
    assert max(counter(aggregator, "nccl_lost_operations")) == 0


@pytest.mark.slow
def test_the_diagnosis_says_what_is_missing_and_ranks_are_matched_on_after_a_restart(
    built: Path, tmp_path: Path
) -> None:
    real = Aggregator(AggregatorConfig(listen="127.0.0.1:0", http_listen=None, round_interval_s=0.2))
    with ExitStack() as stack:
        real.start()
        stack.callback(real.stop)
        nodes, jobs = [], []
        for rank, gpu_percent in enumerate((60, 20)):
            one = Node(tmp_path / f"n{rank}", real.grpc_address, f"n{rank}")
            environment = {"DRIVER_GPU_PERCENT": str(gpu_percent)}
            if rank:
                environment["PERFD_NCCL_RING_ENTRIES"] = str(SHORT_RING)
            jobs.append(stack.enter_context(training(built, one, rank=rank, **environment)))
            stack.callback(one.kill_agent)
            one.start_agent()
            nodes.append(one)

        # As many bursts each time would seem to be steps, in which the wait for the agents hides who is slow.
        bursts = random.Random(20)

        def go_until(satisfied: Callable[[JobSummary], bool]) -> JobSummary:
            while True:
                count = bursts.randint(1, SHORT_RING // BURST)
                for one, job in zip(nodes, jobs, strict=True):
                    one.burst(job, count)
                # Faster than the agents read, the rings would lose what is to be matched.
                paced(lambda: newest_of_slowest(real) >= nodes[0].begun - 1)
                summary = real.live("j1") if "j1" in real.jobs() else None
                if summary is not None and satisfied(summary):
                    return summary

        go_until(lambda summary: blamed(summary) == [1])
        nodes[1].kill_agent()
        for one, job in zip(nodes, jobs, strict=True):
            one.burst(job, GAP)
        nodes[1].start_agent()
        gap_ended = nodes[0].begun
        # What was lost is known for 64 readings, on a slow machine until before operations are matched again.
        losing: list[JobSummary] = []

        def matched_again(summary: JobSummary) -> bool:
            lost = (summary.nccl.lost_operations or 0) >= GAP * BURST - LONGER_RING
            losing.extend([summary] if lost and blamed(summary) == [1] else [])
            matched = newest_matched(real) >= gap_ended + 10 * BURST
            return bool(losing) and matched and blamed(summary) == [1]

        go_until(matched_again)

    for summary in losing:
        (straggler,) = (finding for finding in summary.findings if finding.kind is Kind.STRAGGLER)
        lost = f"{summary.nccl.lost_operations:,} NCCL operations were not seen"
        assert any(sentence.startswith(lost) for sentence in straggler.evidence)


def blamed(summary: JobSummary) -> list[int | str]:
    return [
        culprit.id
        for finding in summary.findings
        if finding.kind is Kind.STRAGGLER
        for culprit in finding.culprits
    ]


def paced(condition: Callable[[], bool]) -> None:
    """Wait until it holds or for a second: what is lost in a full ring never comes."""
    end = time.monotonic() + 1
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def newest_matched(aggregator: Aggregator) -> int:
    """The newest operation that both ranks reported; -1 while there is none after the gap."""
    sequence, known = reported(aggregator)
    return int(sequence[known.all(axis=0)].max(initial=-1))


def newest_of_slowest(aggregator: Aggregator) -> int:
    """The newest operation of the rank that is behind; -1 while one reported none."""
    sequence, known = reported(aggregator)
    return min(int(sequence[of_rank].max(initial=-1)) for of_rank in known)


def reported(aggregator: Aggregator) -> tuple[np.ndarray, np.ndarray]:
    """Sequence numbers of the operations, and which rank (row) reported which (column)."""
    state = aggregator.state
    with state.lock:
        stacks = state.fleet.jobs["j1"].communication.collectives.stacks() if "j1" in state.fleet.jobs else ()
    if not stacks:
        return np.zeros(0, dtype=int), np.zeros((2, 0), dtype=bool)
    (stack,) = stacks
    return stack.sequence[0], ~np.isnan(stack.durations_s[0]).T
