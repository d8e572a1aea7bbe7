"""The NCCL plugin, driven through every version of NCCL's interface by a program that plays NCCL's part."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from nccl.driver import DRIVER, FLAGS, NEEDS_GCC, SOURCES, VERSIONS, driving, go_on, only_segment, wait_for
from perfd_collectors.nccl.collector import NcclCollector, NcclOptions
from perfd_collectors.nccl.operations import OperationTiming, RingBuffers, SegmentReader
from perfd_collectors.nccl.segments import FUNCTIONS, ProcessRanks
from perfd_collectors.nccl.segments.segment import RecordingMode, Segment
from perfd_collectors.nccl.segments.segment_discovery import find_segments, remove_left_over

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.model import CollectiveTimes, Record, SampleTable, Scope

pytestmark = NEEDS_GCC


@pytest.mark.parametrize("version", VERSIONS)
def test_every_operation_is_recorded_once_with_what_the_version_shows(
    built: Path, tmp_path: Path, version: int
) -> None:
    with driving(built, tmp_path, version, "one", 800) as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            reading = RingBuffers(segment).read()
            communicators = list(segment.communicators())
            counters = segment.counters()

    rows = reading.operations.rows()
    point_to_point = reading.operations.point_to_point
    assert reading.lost == 0
    assert len(rows) == counters.recorded == counters.started == 800
    assert Counter(FUNCTIONS[op.function] for op in rows) == {
        "AllReduce": 600,
        "Send": 100,
        "Recv": 100,
    }
    collectives = sorted(
        op.operation_sequence for op, pair in zip(rows, point_to_point, strict=True) if not pair
    )
    assert collectives == list(range(600))
    pairs = Counter(
        (op.function, op.peer_or_root, op.operation_sequence)
        for op in reading.operations.select(point_to_point).rows()
    )
    assert pairs == {(f, peer, n): 1 for f in (6, 7) for peer in (2, 3) for n in range(50)}
    assert [(c.id, c.rank, c.live) for c in communicators] == [
        (100, 1, True) if version >= 4 else (77, 1, True)
    ]
    assert counters.dropped == counters.incomplete == 0
    # Interface 3 reports channels of a send without having told how many there are: they come too late.
    assert (counters.stale > 0) == (version == 3)
    assert len({op.group for op in rows}) == 800


@pytest.mark.parametrize("version", [4, 5, 6])
def test_gpu_times_span_the_first_start_to_the_last_stop_of_all_channels(
    built: Path, tmp_path: Path, version: int
) -> None:
    with driving(built, tmp_path, version, "one", 64) as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            operations = RingBuffers(segment).read().operations

    by_start = operations.select(operations.column("gpu_start_ns").argsort())
    assert by_start.column("gpu_start_ns").tolist() == [1_000_000 * (i + 1) for i in range(64)]
    assert by_start.durations_ns.tolist() == [5000 + i for i in range(64)]
    assert by_start.on_gpu.all()
    assert all(op.channels_seen == op.channels for op in by_start.rows())


def test_records_of_real_operations_show_when_these_began_by_the_nodes_clock(
    built: Path, tmp_path: Path
) -> None:
    with driving(built, tmp_path, 5, "one", 64) as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            now_unix_ns = time.time_ns()
            reader = SegmentReader(segment, now_unix_ns, None)
            (communicator,) = segment.communicators()
            ranks = ProcessRanks(world_size=8, devices={3: None}, communicators={communicator.index: 3})
            records = reader.report("j", now_unix_ns, 10**9, ranks)
    all_times = [one for one in records if isinstance(one, CollectiveTimes)]

    starts_us = sorted(start for times in all_times for start in accumulate(times.start_increments_us))
    # The driver's GPU begins an operation each millisecond by its clock, and the last one ended just now.
    assert [after - before for before, after in pairwise(starts_us)] == [1_000] * 63
    last_unix_ns = all_times[0].start_unix_ns + 1_000 * starts_us[-1]
    assert segment.process.unix_ns <= last_unix_ns <= now_unix_ns
    assert all(len(times.queued_us) == len(times.sequences) for times in all_times)


@pytest.mark.parametrize(
    ("version", "timing"), [(1, OperationTiming.HOST), (2, OperationTiming.HOST), (3, OperationTiming.PROXY)]
)
def test_older_interfaces_never_claim_a_gpu_time(
    built: Path, tmp_path: Path, version: int, timing: OperationTiming
) -> None:
    with driving(built, tmp_path, version, "one", 64) as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            operations = RingBuffers(segment).read().operations

    collectives = operations.select(~operations.point_to_point)
    assert {op.timing for op in collectives.rows()} == {timing}
    assert not operations.on_gpu.any()


def test_a_lapped_reader_counts_what_it_lost(built: Path, tmp_path: Path) -> None:
    with driving(built, tmp_path, 5, "one", 5000, PERFD_NCCL_RING_ENTRIES="64") as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            reading = RingBuffers(segment).read()

    assert reading.lost + len(reading.operations) == 5000
    # Of a full ring the oldest place may be under the writer's hands.
    assert 63 <= len(reading.operations) <= 2 * 63


@pytest.mark.parametrize("version", [3, 6])
def test_communicators_in_threads_of_their_own_lose_nothing(
    built: Path, tmp_path: Path, version: int
) -> None:
    with driving(built, tmp_path, version, "many", 2000) as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            reading = RingBuffers(segment).read()
            counters = segment.counters()

    assert counters.dropped == 0
    assert len(reading.operations) + reading.lost == counters.recorded == counters.started == 6 * 2000
    assert reading.lost == 0


def test_operations_whose_channels_never_come_are_given_up_and_marked(built: Path, tmp_path: Path) -> None:
    with driving(built, tmp_path, 5, "lost", 5000, PERFD_NCCL_RING_ENTRIES="8192") as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            operations = RingBuffers(segment).read().operations
            counters = segment.counters()

    assert len(operations) == counters.incomplete == 5000
    assert operations.incomplete.all()
    assert not operations.measured.any()
    assert counters.stale >= 2


def test_a_child_after_fork_neither_crashes_nor_writes_to_its_parents_rings(
    built: Path, tmp_path: Path
) -> None:
    with driving(built, tmp_path, 5, "fork", 100) as process:
        wait_for(process, "ready")
        parents = [path for path in find_segments(tmp_path) if f"-{process.pid}-" in path.name]
        segment = Segment(parents[0])
        recorded = segment.counters().recorded
        segment.close()

    assert recorded == 100


def test_the_library_may_be_closed_and_opened_again(built: Path, tmp_path: Path) -> None:
    with driving(built, tmp_path, 5, "reload", 10) as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            assert len(RingBuffers(segment).read().operations) == 30
            assert [c.live for c in segment.communicators()] == [False] * 3


def test_the_agent_switches_events_while_the_job_runs(built: Path, tmp_path: Path) -> None:
    with driving(built, tmp_path, 5, "switch", 50, PERFD_NCCL_EVENTS="off") as process:
        wait_for(process, "phase")
        with only_segment(tmp_path) as segment:
            rings = RingBuffers(segment)
            assert len(rings.read().operations) == 0
            segment.set_recording_mode(RecordingMode.OPERATIONS | RecordingMode.GPU_TIME)
            go_on(process)
            wait_for(process, "phase")
            with_gpu_time = rings.read().operations.rows()
            segment.set_recording_mode(RecordingMode.OPERATIONS)
            go_on(process)
            wait_for(process, "ready")
            without = rings.read().operations.rows()

    assert len(with_gpu_time) == len(without) == 50
    assert {op.timing for op in with_gpu_time[1:]} == {OperationTiming.GPU}
    assert {op.timing for op in without[1:]} == {OperationTiming.HOST}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_callback_allocates_nothing_takes_no_lock_and_calls_no_system(
    built: Path, tmp_path: Path, version: int
) -> None:
    with driving(built, tmp_path, version, "watch", 3000) as process:
        (said, _) = wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            assert segment.counters().recorded == 3000

    assert said == "no system call, 0 allocations, 0 locks"


def test_launches_of_a_captured_collective_are_recorded_each_whatever_thread_shows(
    built: Path, tmp_path: Path
) -> None:
    with driving(built, tmp_path, 6, "graph", 500) as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            operations = RingBuffers(segment).read().operations
            communicators = list(segment.communicators())

    assert operations.on_gpu.all()
    assert operations.durations_ns.tolist() == [5000] * 500
    assert set(operations.column("operation_sequence")) == {0}
    assert [communicator.live for communicator in communicators] == [False]


@pytest.mark.parametrize(("version", "reported"), [(3, 0), (4, 1), (5, 1), (6, 1)])
def test_a_full_shared_memory_turns_the_plugin_off_and_nccls_log_says_so_once(
    built: Path, tmp_path: Path, version: int, reported: int
) -> None:
    with driving(built, tmp_path, version, "many", 10, DRIVER_ROOM_BYTES="30000") as process:
        *log, mask = wait_for(process, "ready")
    assert mask == "mask 0"
    assert len(log) == reported
    assert all(
        line.startswith("NCCL WARN perfd records no operations: cannot create its shared memory")
        for line in log
    )
    assert list(tmp_path.iterdir()) == []


def test_a_shared_memory_that_fills_up_later_costs_rings_and_no_crash(built: Path, tmp_path: Path) -> None:
    with driving(built, tmp_path, 6, "many", 500, DRIVER_ROOM_BYTES="2500000") as process:
        wait_for(process, "ready")
        with only_segment(tmp_path) as segment:
            reading = RingBuffers(segment).read()
            counters = segment.counters()

    assert counters.started == 6 * 500
    assert len(reading.operations) + reading.lost + counters.dropped == counters.started
    assert len(reading.operations) > 0


def test_the_agent_samples_and_estimates_the_time_in_kernels_between_samples(
    built: Path, tmp_path: Path
) -> None:
    clock = VirtualClock(0)
    options = NcclOptions(directory=str(tmp_path), sample_one_in=2, sample_s=5.0, flight_recorder_prefix=None)
    collector = NcclCollector(options, Settings(node="n", job="job", clock=clock))

    def window(process: subprocess.Popen[str], word: str) -> tuple[int, float]:
        """Operations with a duration, and the counter of time in kernels, when the driver is so far."""
        wait_for(process, word)
        clock.advance(1.1)
        records = collector.collect()
        timed = sum(record.count for record in records if isinstance(record, CollectiveTimes))
        (busy_s,) = (table.columns["nccl_busy_s"][0] for table in of_ranks(records))
        return timed, busy_s

    with driving(built, tmp_path, 5, "switch", 50, PERFD_NCCL_EVENTS="off") as process:
        wait_for(process, "phase")
        clock.advance(1.1)
        collector.collect()
        go_on(process)
        timed, busy_s = window(process, "phase")
        clock.advance(4)
        collector.collect()
        go_on(process)
        timed_between, busy_between_s = window(process, "ready")
    collector.close()

    assert timed >= 49
    assert timed_between <= 1
    assert busy_between_s == pytest.approx(2 * busy_s, rel=0.05)


def test_without_a_place_for_shared_memory_nccl_calls_no_more(built: Path, tmp_path: Path) -> None:
    with driving(built, tmp_path / "absent", 6, "one", 10) as process:
        assert wait_for(process, "ready")[-1] == "mask 0"


def test_two_runs_on_one_node_read_each_their_own_job(built: Path, tmp_path: Path) -> None:
    with (
        driving(built, tmp_path, 5, "one", 10, RANK="0", PERFD_RUN="ours") as ours,
        driving(built, tmp_path, 5, "one", 10, RANK="1", PERFD_RUN="theirs") as theirs,
        driving(built, tmp_path, 5, "one", 10, RANK="2") as nobodys,
    ):
        for process in (ours, theirs, nobodys):
            wait_for(process, "ready")

        assert ranks_seen(tmp_path, run="ours") == {"job/0"}
        assert ranks_seen(tmp_path, run=None) == {"job/0", "job/1", "job/2"}


def test_a_run_does_not_count_what_a_killed_job_before_it_left_behind(built: Path, tmp_path: Path) -> None:
    with driving(built, tmp_path, 5, "one", 10, RANK="0", PERFD_RUN="before") as killed:
        wait_for(killed, "ready")
        killed.kill()
        killed.wait()
        left = find_segments(tmp_path)

        assert ranks_seen(tmp_path, run="ours") == set()
        assert left, "there was something to count"
        assert not find_segments(tmp_path), "it is removed, nevertheless"


class WatchedJob:
    """`perfd run` around a driver that goes on until perfd has seen what it does."""

    def __init__(
        self, built: Path, folder: Path, options: dict[str, object], environment: dict[str, str]
    ) -> None:
        folder.mkdir()
        self._folder, self._seen = folder, folder / "seen"
        config = folder / "perfd.json"
        nccl = {"options": {"flight_recorder_prefix": None, **options}}
        config.write_text(
            json.dumps(
                {
                    "agent": {"collectors": {"nccl": nccl}},
                    "aggregator": {"http_listen": "127.0.0.1:0"},
                }
            )
        )
        bursts = f"while [ ! -e {self._seen} ]; do sleep 0.3; echo; done"
        job = f"({bursts}) | {built / 'driver'} {built / 'libnccl-profiler-perfd.so'} 5 bursts 20"
        command = [
            sys.executable,
            "-m",
            "perfd",
            "run",
            "--no-nsys",
            "--config",
            str(config),
            "--job",
            "same",
        ]
        kept = {name: value for name, value in os.environ.items() if name != "PERFD_NCCL_DIR"}
        self._process = subprocess.Popen(
            [*command, "--out", str(folder / "out"), "--", "sh", "-c", job],
            env={**kept, "WORLD_SIZE": "2", **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ranks(self) -> list[int]:
        """Whose operations the summary holds; ends the job as soon as the live one has any."""
        assert self._process.stderr is not None
        said = (re.search(r"live page at (\S+?)/?$", line.strip()) for line in self._process.stderr)
        url = next(found[1] for found in said if found)
        while not self._live_ranks(url):
            assert self._process.poll() is None
            time.sleep(0.1)
        self._seen.touch()
        self._process.stderr.read()
        self._process.stderr.close()
        assert self._process.wait() == 0
        (saved,) = self._folder.glob("out/*/summary.json")
        (summary,) = json.loads(saved.read_text())["jobs"]
        return [one["rank"] for one in summary["nccl"]["ranks"]]

    def _live_ranks(self, url: str) -> bool:
        with urllib.request.urlopen(f"{url}/api/v1/jobs") as answer:
            if not json.load(answer)["jobs"]:
                return False
        with urllib.request.urlopen(f"{url}/api/v1/jobs/same") as answer:
            return bool(json.load(answer)["jobs"][0]["nccl"]["ranks"])


@pytest.mark.slow
def test_perfd_run_distinguishes_its_job_from_that_of_another_with_the_same_name(
    built: Path, tmp_path: Path
) -> None:
    (tmp_path / "shm").mkdir()
    directory = str(tmp_path / "shm")
    jobs = [
        WatchedJob(
            built, tmp_path / rank, {"directory": directory}, {"PERFD_NCCL_DIR": directory, "RANK": rank}
        )
        for rank in ("0", "1")
    ]

    assert [job.ranks() for job in jobs] == [[0], [1]]


@pytest.mark.slow
@pytest.mark.parametrize("named_by", ["the user", "the configuration"])
def test_perfd_run_and_the_plugin_use_the_folder_that_either_was_given(
    built: Path, tmp_path: Path, named_by: str
) -> None:
    place = tmp_path / "rings"
    place.mkdir()
    options: dict[str, object] = {}
    environment = {"RANK": "0"}
    if named_by == "the user":
        environment["PERFD_NCCL_DIR"] = str(place)
    else:
        options["directory"] = str(place)

    assert WatchedJob(built, tmp_path / "run", options, environment).ranks() == [0]


def ranks_seen(directory: Path, *, run: str | None) -> set[str]:
    clock = VirtualClock()
    options = NcclOptions(directory=str(directory), flight_recorder_prefix=None)
    collector = NcclCollector(options, Settings(node="n", job="job", clock=clock, run=run))
    records: list[Record] = []
    for _ in range(3):
        clock.advance(options.window_s)
        records += collector.collect()
    collector.close()
    return {entity for table in of_ranks(records) for entity in table.entities}


def of_ranks(records: Iterable[Record]) -> list[SampleTable]:
    return [one for one in records if isinstance(one, SampleTable) and one.scope is Scope.RANK]


def test_what_a_killed_job_leaves_behind_is_swept_and_a_live_one_is_not(built: Path, tmp_path: Path) -> None:
    with driving(built, tmp_path, 5, "one", 10) as live:
        wait_for(live, "ready")
        with driving(built, tmp_path, 5, "one", 10) as killed:
            wait_for(killed, "ready")
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            assert len(find_segments(tmp_path)) == 2
            removed = remove_left_over(find_segments(tmp_path), time.time())

        assert [f"-{killed.pid}-" in path.name for path in removed] == [True]
        assert len(find_segments(tmp_path)) == 1
    assert find_segments(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_no_order_of_callbacks_makes_a_sanitizer_complain(tmp_path: Path, sanitizer: str) -> None:
    driver = tmp_path / "driver"
    subprocess.run(
        ["gcc", *FLAGS, f"-fsanitize={sanitizer}", *SOURCES, DRIVER, "-o", driver, "-ldl", "-rdynamic"],
        check=True,
    )
    environment = {
        **os.environ,
        "PERFD_NCCL_DIR": str(tmp_path),
        "PERFD_NCCL_RING_ENTRIES": "64",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    runs = [
        ("many", "500"), ("lost", "6000"), ("fork", "200"), ("graph", "500"), ("switch", "100"),
        *(("fuzz", "30000", str(seed)) for seed in range(3)),
    ]  # fmt: skip
    for version in map(str, VERSIONS):
        for run in runs:
            result = subprocess.run(
                [driver, "linked", version, *run],
                input="\n\n\n",
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
            assert (result.returncode, result.stderr) == (0, "")
