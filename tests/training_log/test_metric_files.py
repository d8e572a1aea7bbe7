"""Steps from the files of loggers: TensorBoard's, W&B's, Lightning's; written by the real packages."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from perfd_collectors.training_log.collector import TrainingLogOptions, create
from perfd_collectors.training_log.job_metric_files import LOOK_EVERY_S, JobFiles
from perfd_collectors.training_log.log_parser import new_job
from perfd_collectors.training_log.metric_files import MetricFileParser, metric_file_reader
from perfd_collectors.training_log.metric_files import metric_files_pb2 as pb
from perfd_collectors.training_log.metric_files.event_file import EventFileReader, masked_crc32c
from perfd_collectors.training_log.metric_files.wandb_file import WandbFileReader
from tensorboard.compat.proto.event_pb2 import Event as RealEvent
from tensorboard.compat.proto.summary_pb2 import Summary as RealSummary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.model import Event, EventKind, Record, TrainingStep

GOLDEN = Path(__file__).parents[1] / "fixtures/training_log/metric_files"
EVENTS = GOLDEN / "events.out.tfevents.1700000000.node.4711.0"
SECOND_NS = 10**9
START_NS = 1_800_000_000 * SECOND_NS


def settings(clock: VirtualClock | None = None) -> Settings:
    return Settings(node="n", job="j", clock=clock or VirtualClock(START_NS))


def read(*paths: Path, sandboxed: bool = False) -> Sequence[Record]:
    """The records of whole files, at once and after a while."""
    clock = VirtualClock(START_NS)
    options = TrainingLogOptions(paths=tuple(map(str, paths)))
    with closing(create(options, replace(settings(clock), sandboxed=sandboxed))) as collector:
        found = list(collector.collect())
        clock.advance(3.0)
        return [*found, *collector.collect()]


def steps(records: Sequence[Record]) -> list[TrainingStep]:
    return [record for record in records if isinstance(record, TrainingStep)]


def test_an_event_file_of_torch_shows_steps_with_times_tokens_and_evaluations() -> None:
    records = read(EVENTS)

    found = steps(records)
    assert [step.step for step in found] == list(range(10, 81, 10))
    assert found[0].time_unix_ns == 1_700_000_000_500_000_000
    assert [step.step_time_s for step in found] == [None, *[pytest.approx(0.05)] * 7]
    assert [step.steps_covered for step in found] == [1, *[10] * 7]
    assert found[-1].tokens_per_s == pytest.approx(40960 / 0.5)
    assert found[-1].losses == {"train/loss": 1.0}
    assert found[-1].learning_rate == pytest.approx(1e-3)
    # The histogram's step is none of training.
    assert {record.kind for record in records if isinstance(record, Event)} <= {EventKind.EVALUATION}


@pytest.mark.parametrize("path", [EVENTS, GOLDEN / "metrics.csv"], ids=lambda path: path.suffix)
def test_in_the_sandbox_it_reads_the_same(path: Path) -> None:
    inside = [(step.step, step.step_time_s) for step in steps(read(path))]
    assert [(step.step, step.step_time_s) for step in steps(read(path, sandboxed=True))] == inside != []


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_an_event_file_that_grows_by_pieces_reads_the_same(piece: int) -> None:
    whole, data = EventFileReader(), EVENTS.read_bytes()
    expected = [*whole.feed(data), *whole.flush()]
    reader = EventFileReader()
    rows = [row for at in range(0, len(data), piece) for row in reader.feed(data[at : at + piece])]
    assert [*rows, *reader.flush()] == expected != []


def test_a_damaged_event_file_ends_there() -> None:
    data = bytearray(EVENTS.read_bytes())
    middle = data.find(b"train/loss", data.find(b"eval/loss")) - 40
    data[middle:middle] = b"\xff" * 16
    reader = EventFileReader()
    rows = list(reader.feed(bytes(data)))
    assert 0 < len(rows) < 8
    assert not list(reader.feed(EVENTS.read_bytes()))
    reader.restart()
    assert len([*reader.feed(EVENTS.read_bytes()), *reader.flush()]) >= 8


def test_a_large_record_is_passed_over_without_being_kept() -> None:
    length = (2 << 20).to_bytes(8, "little")
    header = length + masked_crc32c(length).to_bytes(4, "little")
    reader = EventFileReader()
    assert list(reader.feed(header + b"x" * (1 << 20))) == []
    assert list(reader.feed(b"x" * (1 << 20) + b"crc!")) == []
    assert [row.step for row in reader.feed(EVENTS.read_bytes())][:2] == [10, 20]


def test_scalars_of_tensorflow_2_are_read(tmp_path: Path) -> None:
    writer = EventFileWriter(str(tmp_path))
    for step in (1, 2, 3):
        value = RealSummary.Value(tag="loss", tensor=make_tensor_proto(float(step), dtype="float32"))
        half = RealSummary.Value(tag="image", tensor=make_tensor_proto([1.0, 2.0], dtype="float32"))
        event = RealEvent(wall_time=1.7e9 + step, step=step, summary=RealSummary(value=[value, half]))
        writer.add_event(event)
    writer.close()
    found = steps(read(*tmp_path.iterdir()))
    assert [(step.step, step.losses) for step in found] == [(n, {"loss": float(n)}) for n in (1, 2, 3)]
    assert found[-1].step_time_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("folder", "tag"), [("validation", "loss"), ("train", "epoch_loss"), ("train", "lm loss vs samples")]
)
def test_what_counts_something_else_than_steps_is_no_step(tmp_path: Path, folder: str, tag: str) -> None:
    writer = EventFileWriter(str(tmp_path / folder))
    for number in (1, 2, 3):
        value = RealSummary.Value(tag=tag, simple_value=1.0)
        writer.add_event(RealEvent(wall_time=1.7e9 + number, step=number, summary=RealSummary(value=[value])))
    writer.close()
    assert steps(read(*(tmp_path / folder).iterdir())) == []


WANDB = """
import os, sys
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
import wandb
run = wandb.init(project="p", dir=sys.argv[1])
for i in range(1, 121):
    run.log({"train/loss": 3.0 / i, "train/global_step": i * 5, "note": "x", "nan": float("nan")})
run.finish()
"""


def history_at(data: bytes) -> Iterator[int]:
    """Where each history record of one piece has its data; other records of a run repeat the same keys."""
    at = 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = struct.unpack_from("<HB", data, at + 4)
        at += 7
        if kind == 1 and pb.RunRecord.FromString(data[at : at + length]).history.item:
            yield at
        at += length


@pytest.mark.slow
def test_a_run_file_of_wandb_shows_the_job_s_own_steps(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WANDB, str(tmp_path)], check=True, timeout=300)
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    # Records lie across the blocks of 32 KiB.
    assert path.stat().st_size > 32768
    found = steps(read(path))
    assert [step.step for step in found] == list(range(5, 601, 5))
    assert found[2].losses == {"train/loss": 1.0}
    assert all(step.step_time_s is not None and step.step_time_s > 0 for step in found[1:])

    reader, data = WandbFileReader(), path.read_bytes()
    rows = [row for at in range(0, len(data), 1000) for row in reader.feed(data[at : at + 1000])]
    assert [row.step for row in rows] == list(range(5, 601, 5))
    damaged = bytearray(data)
    damaged[next(at for at in history_at(data) if at > 20_000)] ^= 0xFF
    left = [row.step for row in WandbFileReader().feed(bytes(damaged))]
    assert set(left) < set(range(5, 601, 5))
    assert len(left) == 119


def test_values_of_older_wandb_are_json() -> None:
    item = pb.HistoryItem(nested_key=["loss"], value_json="2.5")
    number = pb.HistoryItem(key="_timestamp", value_json="1700000000.5")
    other = pb.HistoryItem(key="hist", value_json='{"_type": "histogram"}')
    record = pb.RunRecord(history=pb.History(item=[item, number, other], step=pb.HistoryStep(num=7)))
    data = record.SerializeToString()
    piece = (zlib.crc32(b"\x01" + data)).to_bytes(4, "little") + len(data).to_bytes(2, "little") + b"\x01"
    (row,) = WandbFileReader().feed(b":W&B\x67\xbe\x00" + piece + data)
    assert (row.step, row.values, row.unix_ns) == (7, {"loss": 2.5}, 1_700_000_000_500_000_000)


def test_the_newest_row_of_those_written_together_says_how_far_the_job_is(tmp_path: Path) -> None:
    clock = VirtualClock(START_NS)
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train_loss\n0,9,2.0\n0,19,1.5\n")
    os.utime(path, ns=(START_NS, START_NS))
    with closing(create(TrainingLogOptions(paths=(str(path),)), settings(clock))) as collector:
        found = steps(collector.collect())
        clock.advance(10.0)
        # A new name: the file is written anew.
        path.write_text("epoch,lr,step,train_loss\n0,,9,2.0\n0,,19,1.5\n0,1,29,1.4\n0,1,39,1.3\n")
        os.utime(path, ns=(clock.unix_ns(), clock.unix_ns()))
        found += steps(collector.collect())
    assert [(step.step, step.step_time_s) for step in found] == [(19, None), (39, pytest.approx(0.5))]


def test_of_two_loggers_one_counts_until_it_has_ended() -> None:
    job = new_job("j")

    def parser(name: str) -> MetricFileParser:
        reader = metric_file_reader(name)
        assert reader is not None
        return MetricFileParser(job, name, reader)

    def rows(parser: MetricFileParser, *rows: tuple[int, float], anew: bool = True) -> list[int]:
        header = "step,loss\n" if anew else ""
        for step, at_s in rows:
            parser.feed(f"{header}{step},1.0\n".encode(), round(at_s * SECOND_NS))
            header = ""
        return [step.step for step in steps(job.out.take(0))]

    first, second, restarted = parser("a/metrics.csv"), parser("b/metrics.csv"), parser("c/metrics.csv")
    assert rows(first, (10, 100.0), (20, 101.0)) == [10, 20]
    assert rows(second, (15, 100.5), (25, 101.5), (35, 120.0)) == []
    assert rows(first, (30, 102.0), anew=False) == [30]
    # It begins after the first one's last row, but only once that is silent is it another run.
    assert rows(restarted, (10, 105.0), (20, 113.0), (30, 114.0)) == [20, 30]
    assert rows(first, (40, 115.0), anew=False) == []


def test_names_decide_what_is_a_metric_file() -> None:
    assert isinstance(metric_file_reader("runs/a/events.out.tfevents.1.h.2.0"), EventFileReader)
    assert isinstance(metric_file_reader("wandb/run-x/run-x.wandb"), WandbFileReader)
    assert metric_file_reader("train.log") is metric_file_reader("my_metrics.csv") is None


OPEN = """
import sys, time
file = open(sys.argv[1], sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


class Job:
    """Processes that hold files open, until the test ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.running: list[subprocess.Popen[bytes]] = []
        self.find = JobFiles(
            Path("/proc"), lambda: [Path("/proc", str(one.pid)) for one in self.running], self.clock
        )

    def run(self, name: str, mode: str = "w", *arguments: str, cwd: Path | None = None) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", OPEN, str(self.folder / name), mode, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd or "/",
        )
        self.running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    def found(self) -> set[str]:
        self.clock.advance(LOOK_EVERY_S[1])
        return {str(Path(name).relative_to(self.folder)) for name in self.find()}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    for process in job.running:
        process.kill()
        process.communicate()


def test_files_that_a_process_writes_to_are_found_and_stay(job: Job) -> None:
    (job.folder / "read.wandb").write_text("")
    job.run("run.wandb")
    job.run("log.jsonl")
    job.run("other.txt")
    job.run("read.wandb", "r")
    assert job.found() == {"run.wandb", "log.jsonl"}
    for process in job.running:
        process.kill()
        process.wait()
    assert job.found() == {"run.wandb", "log.jsonl"}
    (job.folder / "log.jsonl").unlink()
    assert job.found() == {"run.wandb"}


def test_files_that_are_closed_between_writes_are_found_below_a_job_s_folders(job: Job) -> None:
    work, output = job.folder / "work", job.folder / "out"
    old = work / "lightning_logs/version_0/metrics.csv"
    for path in (old, work / "lightning_logs/version_1/metrics.csv", output / "sft/trainer_log.jsonl"):
        path.parent.mkdir(parents=True)
        path.write_text("")
    os.utime(old, (1.7e9, 1.7e9))
    pid = job.run("work/x", "w", "--output_dir", str(output), cwd=work)
    for path in (work / "lightning_logs/version_1/metrics.csv", output / "sft/trainer_log.jsonl"):
        # The time of a process's start is known to a second.
        os.utime(path, (path.stat().st_mtime + 5, path.stat().st_mtime + 5))
    for name in (f"events.out.tfevents.1.host.{pid}.0", "events.out.tfevents.1.host.1.0"):
        (work / name).write_text("")
        os.utime(work / name, (old.parent.stat().st_mtime + 60,) * 2)
    assert job.found() == {
        "work/lightning_logs/version_1/metrics.csv",
        "out/sft/trainer_log.jsonl",
        f"work/events.out.tfevents.1.host.{pid}.0",
    }


def test_looks_become_rarer() -> None:
    clock, looks = VirtualClock(), []
    find = JobFiles(Path("/proc"), lambda: looks.append(clock.monotonic_s()) or [], clock)
    for _ in range(3600):
        find()
        clock.advance(1.0)
    gaps = [later - before for before, later in pairwise(looks)]
    assert gaps[0] == LOOK_EVERY_S[0]
    assert gaps[-1] == LOOK_EVERY_S[1]
    assert len(looks) < 120
