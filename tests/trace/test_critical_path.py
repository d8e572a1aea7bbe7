"""The critical path beside a plain longest path through the graph of a small simulated job."""

import json
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfd.cli import main
from perfd.trace.breakdown import RankTimeline, collectives, critical_path
from perfd.trace.breakdown.activity_links import QUEUED_GAP_NS, activity_links
from perfd.trace.breakdown.critical_path_gains import path_gains
from perfd.trace.model.operation_kinds import HostCallKind, OperationKind
from perfd.trace.model.rank_trace import Collective, Group, RankTrace, calls_of, operations_of
from perfd.trace.model.trace_steps import TraceStep
from tests.support.traces import MATMUL, NCCL, Call, Op, kineto, write_json

LAUNCH_NS, PYTHON_NS = 3_000, 40_000
CLASSES = ("matmul", "elementwise", "softmax", "communication")
GROUP = {"pg_name": "0", "pg_desc": "dp", "ranks": [0, 1], "pg_size": 2}


@dataclass
class Work:
    """A node of the reference: how long it takes, and what it begins after."""

    length: int
    after: list["Work"]
    label: str
    start: int = 0
    end: int = 0
    operation: int = -1


@dataclass
class Rank:
    """One simulated rank."""

    nodes: list[Work] = field(default_factory=list)
    host: Work = field(default_factory=lambda: Work(0, [], "host"))
    streams: dict[int, Work] = field(default_factory=dict)
    operations: list[tuple[Work, int, int]] = field(default_factory=list)
    calls: list[tuple[Work, HostCallKind, int]] = field(default_factory=list)


class Job:
    """Ranks that run programs of launches, waits, pauses and collectives; times follow from the graph."""

    def __init__(self, seed, ranks, one_stream=False):
        self.one_stream = one_stream
        self.chance = random.Random(seed)
        self.ranks = [Rank() for _ in range(ranks)]
        self.nodes = [rank.host for rank in self.ranks]
        self.collectives = []
        self.near_ties = False
        for _ in range(self.chance.randint(1, 4)):
            for rank in self.ranks:
                for _ in range(self.chance.randint(0, 6)):
                    self.act(rank)
            if ranks > 1:
                self.join()
        self.ends = [self.wait(rank) for rank in self.ranks]

    def node(self, length, after, label):
        work = Work(length, list(after), label)
        times = sorted((one.end for one in work.after), reverse=True)
        work.start = times[0]
        self.near_ties |= len(times) > 1 and 0 < times[0] - times[1] <= QUEUED_GAP_NS + LAUNCH_NS
        work.end = work.start + length
        self.nodes.append(work)
        return work

    def act(self, rank):
        kind = self.chance.choice(
            ("launch", "launch", "launch", "other stream", "join streams", "wait", "pause")
        )
        if kind == "wait":
            self.wait(rank)
        elif kind == "pause":
            rank.host = self.node(self.chance.randint(10_000, 400_000), [rank.host], "host")
        else:
            stream = 9 if kind == "other stream" and not self.one_stream else 7
            others = list(rank.streams.values()) if kind == "join streams" else []
            self.launch(rank, stream, self.chance.randint(20_000, 300_000), self.chance.randrange(3), others)

    def launch(self, rank, stream, length, name, others=()):
        rank.host = self.node(self.chance.randint(1, PYTHON_NS), [rank.host], "host")
        rank.host = call = self.node(LAUNCH_NS, [rank.host], "host")
        before = [rank.streams[stream]] if stream in rank.streams else []
        work = self.node(
            length, [call, *before, *(one for one in others if one not in before)], CLASSES[name]
        )
        rank.streams[stream] = work
        rank.calls.append((call, HostCallKind.LAUNCH, len(rank.operations) + 1))
        rank.operations.append((work, stream, name))
        return work

    def wait(self, rank):
        """The host goes on when all that was launched has ended."""
        before = rank.host
        call = self.node(0, [before, *rank.streams.values()], "host")
        rank.calls.append((Work(0, [], "host", start=before.end, end=call.end), HostCallKind.SYNCHRONIZE, 0))
        rank.host = call
        return call

    def join(self):
        """All ranks begin it, and it takes so long from when the last has begun."""
        length = self.chance.randint(20_000, 200_000)
        stream = 7 if self.one_stream else 11
        begun = [self.launch(rank, stream, 0, 3, list(rank.streams.values())) for rank in self.ranks]
        ends = sorted(one.end for one in begun)
        self.near_ties |= ends[-1] - ends[-2] <= QUEUED_GAP_NS
        together = self.node(length, begun, "communication")
        for rank, one in zip(self.ranks, begun, strict=True):
            shown = Work(0, [], "communication", start=one.start, end=together.end)
            at = len(rank.operations) - 1
            rank.operations[at] = (shown, stream, 3)
            rank.streams[stream] = together
        self.collectives.append(([len(rank.operations) - 1 for rank in self.ranks], together))

    def timelines(self):
        found = {}
        for number, rank in enumerate(self.ranks):
            work = [one for one, _, _ in rank.operations]
            columns = {
                "start_ns": [one.start for one in work],
                "end_ns": [one.end for one in work],
                "kind": [
                    OperationKind.COMMUNICATION if name == 3 else OperationKind.COMPUTE
                    for _, _, name in rank.operations
                ],
                "name": [name for _, _, name in rank.operations],
                "stream": [stream for _, stream, _ in rank.operations],
                "correlation": list(range(1, len(work) + 1)),
            }
            operations, order = operations_of(
                {key: np.array(x, dtype=np.int64) for key, x in columns.items()}
            )
            place = {int(old): new for new, old in enumerate(order)}
            calls = calls_of(
                {
                    "start_ns": np.array([call.start for call, _, _ in rank.calls], dtype=np.int64),
                    "end_ns": np.array([call.end for call, _, _ in rank.calls], dtype=np.int64),
                    "kind": np.array([kind for _, kind, _ in rank.calls], dtype=np.int64),
                    "correlation": np.array([number for _, _, number in rank.calls], dtype=np.int64),
                    "thread": np.zeros(len(rank.calls), dtype=np.int64),
                    "name": np.zeros(len(rank.calls), dtype=np.int64),
                }
            )
            members = tuple(range(len(self.ranks)))
            joined = [
                Collective(
                    operation=place[at[number]], name="allreduce", group="dp", group_ranks=members, sequence=n
                )
                for n, (at, _) in enumerate(self.collectives)
            ]
            trace = RankTrace(
                file="made", rank=number, gpu=None, device=number, names=CLASSES, classes=CLASSES,
                operations=operations, calls=calls, call_names=["call"], collectives=joined,
                groups=[Group(name="0", description="dp", ranks=members)],
                steps=[TraceStep(number=1, start_ns=0, end_ns=self.ends[number].end)],
            )  # fmt: skip
            found[number] = RankTimeline(trace)
        return found

    def length_without(self, label):
        """The reference: the longest path to the last rank's end if work of a class takes no time."""
        ends = {}
        for one in self.nodes:
            begin = max((ends[id(before)] for before in one.after), default=0)
            ends[id(one)] = begin + (0 if one.label == label else one.length)
        return ends[id(max(self.ends, key=lambda one: one.end))]

    def longest_path(self):
        """Time by class on the longest path, from the end backward by the definition of one."""
        sums, at = {}, max(self.ends, key=lambda one: one.end)
        while at is not None:
            sums[at.label] = sums.get(at.label, 0) + at.length
            at = max(at.after, key=lambda one: one.end, default=None)
        return {label: length for label, length in sums.items() if length}


@given(st.integers(min_value=0), st.integers(1, 3), st.booleans())
def test_the_path_is_the_longest_one_and_a_saving_is_worth_what_the_graph_says(seed, ranks, one_stream):
    job = Job(seed, ranks, one_stream)
    assume(not job.near_ties and all(rank.operations for rank in job.ranks))
    timelines = job.timelines()
    found = collectives(timelines)
    path = critical_path(timelines, found)
    plain = job.length_without(None)
    assert path.length_s == pytest.approx(plain / 1e9)
    assert path.by_class() == pytest.approx({name: x / 1e9 for name, x in job.longest_path().items()})
    for gain in path_gains(timelines, found, path):
        saved_s = (plain - job.length_without(gain.part_class)) / 1e9
        assert 0 <= gain.gain_s <= gain.path_s
        # Of streams that wait for each other a trace shows only the wait that counted.
        if one_stream:
            assert gain.gain_s == pytest.approx(saved_s, abs=1e-9)


@pytest.mark.parametrize("stream", [7, 9])
def test_operations_of_no_length_release_neither_themselves_nor_each_other(tmp_path, capsys, stream):
    operations = [
        Op(MATMUL, 10, 100, launched=5),
        Op("Memset (Device)", 100, 100, stream, 6),
        Op("Memset (Device)", 100, 100, 7, 7),
        Op(MATMUL, 100, 200, 7, 8),
        Op("Memset (Device)", 300, 300, stream, 250),
    ]
    calls = [Call("cudaDeviceSynchronize", 120, 300), Call("cudaDeviceSynchronize", 300, 300)]
    trace = kineto(operations, calls=calls, steps={0: (0, 400)})
    path = write_json(tmp_path / "rank-0.json", trace)

    assert main(["analyze", str(path), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)["critical_path"]
    assert document["length_s"] == pytest.approx(400e-6)
    assert document["classes"]["matmul"] == pytest.approx(190e-6)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=12))
def test_what_released_an_operation_is_listed_before_it(operations):
    at = sorted(operations)
    columns = {
        "start_ns": [10_000 * start for start, _, _ in at],
        "end_ns": [10_000 * (start + length) for start, length, _ in at],
        "kind": [OperationKind.COMPUTE] * len(at),
        "name": [0] * len(at),
        "stream": [stream for _, _, stream in at],
        "correlation": range(1, len(at) + 1),
    }
    listed, _ = operations_of({key: np.array(x, dtype=np.int64) for key, x in columns.items()})
    call = {"start_ns": 0, "end_ns": 1, "kind": HostCallKind.LAUNCH, "correlation": 1, "thread": 0, "name": 0}
    trace = RankTrace(
        file="made", rank=0, gpu=None, device=0, names=CLASSES, classes=CLASSES, operations=listed,
        calls=calls_of({key: np.array([x], dtype=np.int64) for key, x in call.items()}), call_names=["call"],
        groups=[], steps=[TraceStep(number=1, start_ns=0, end_ns=100_000)],
    )  # fmt: skip

    links = activity_links(RankTimeline(trace))

    assert (links.before < np.arange(len(at))).all()


def two_ranks(folder, late):
    """Rank 1 computes `late` microseconds longer before each all-reduce, and each rank waits at the end."""
    meta = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "dp",
            "Process Group Ranks": "[0, 1]", "In msg nelems": 1000, "dtype": "Float"}  # fmt: skip
    for rank in range(2):
        operations = [
            op
            for step in range(2)
            for op in (
                Op(MATMUL, 1000 * step + 10, 1000 * step + 300 + late * rank, launched=1000 * step + 8),
                Op(NCCL, 1000 * step + 301 + late * rank, 1000 * step + 800, 9, 1000 * step + 16, args=meta),
            )
        ]
        trace = kineto(
            operations,
            calls=[Call("cudaDeviceSynchronize", 1000 * step + 20, 1000 * step + 805) for step in range(2)],
            steps={step: (1000 * step, 1000 * step + 990) for step in range(2)},
            ranges=[("get_batch", 1000 * step + 810, 1000 * step + 900) for step in range(2)],
            rank=rank, world_size=2, groups=[GROUP],
        )  # fmt: skip
        write_json(folder / f"rank-{rank}.json", trace)
    return folder


def test_the_late_rank_is_on_the_path_and_its_peer_is_not(tmp_path, capsys):
    assert main(["analyze", str(two_ranks(tmp_path, late=300)), "--json"]) == 0
    path = json.loads(capsys.readouterr().out)["critical_path"]
    times = {(part["rank"], part["class"], part["step"]): part["total_s"] for part in path["parts"]}
    assert times[1, "matmul", 0] == pytest.approx(590e-6)
    assert times[1, "communication", 0] == pytest.approx(199e-6)
    assert not any(rank == 0 and part_class == "matmul" for rank, part_class, _ in times)
    assert times[path["end_rank"], "data_loading", 1] == pytest.approx(90e-6)
    assert path["length_s"] == pytest.approx(1990e-6)
    assert sum(path["classes"].values()) == pytest.approx(path["length_s"])
    assert sum(path["ranks"].values()) == pytest.approx(path["length_s"])
    assert [step["step"] for step in path["steps"]] == [0, 1]


def test_text_report_and_tables_show_the_path(tmp_path, capsys):
    folder = two_ranks(tmp_path, late=300)
    report = tmp_path / "out" / "report.md"
    report.parent.mkdir()
    assert main(["analyze", str(folder), "--report", str(report)]) == 0
    assert "Critical path (2.0 ms)" in capsys.readouterr().out
    assert "Critical path (2.0 ms)" in report.read_text()
    assert main(["trace", "table", "critical-path,path-gains", str(folder), "--json"]) == 0
    parts, gains = json.loads(capsys.readouterr().out)["tables"]
    keys = [column["name"] for column in parts["columns"]]
    rows = [dict(zip(keys, row, strict=True)) for row in parts["rows"]]
    assert (rows[0]["rank"], rows[0]["class"], rows[0]["count"]) == (1, "matmul", 2)
    assert sum(row["share_ratio"] for row in rows) == pytest.approx(1)
    assert {row[0] for row in gains["rows"]} >= {"matmul", "communication", "host"}


def test_without_complete_ranks_there_is_no_path(tmp_path, capsys):
    operations = [Op(MATMUL, 10, 20, launched=5), Op(MATMUL, 1000, 1010, launched=995)]
    lost = [Call("cudaLaunchKernel", 30 + 9 * n, 35 + 9 * n, 50 + n) for n in range(9)]
    trace = kineto(operations, calls=lost)
    path = write_json(tmp_path / "rank-0.json", trace)
    assert main(["analyze", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["critical_path"] is None
    assert main(["trace", "table", "critical-path", str(path)]) == 0
    assert "No rank has all its GPU records." in capsys.readouterr().out
