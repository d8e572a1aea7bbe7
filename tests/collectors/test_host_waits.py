"""Why a rank's host is late: CPUs, quotas, storage and memory, by fixtures and by real processes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.ranks.host_waits import HostWaits, local_cpus
from perfd_collectors.ranks.thread_times import (
    ProcessReader,
    cpu_stat_file,
    parse_allowed_cpus,
    parse_cpu_busy_s,
    parse_cpu_list,
    parse_cpu_stat,
    parse_schedstat,
    parse_task_stat,
)

from perfd.model import RankColumn, RankPlacement, SampleTable
from tests.support.fake_node import FakeNode

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PID = 4242
RANK = RankPlacement(job="j", rank=3, gpu=0, pid=PID, started_unix_ns=1)


class Host:
    """A rank with threads on a fake node; tests let time pass and threads do something."""

    def __init__(self, root: Path, *, delay_accounting: bool = True, cpus: str = "0-3") -> None:
        self.node = FakeNode(root)
        self.node.process(PID, {})
        self.node.write_proc("sys/kernel/task_delayacct", f"{int(delay_accounting)}\n")
        self.node.write_proc(
            f"{PID}/status", f"Name:\tpython3\nVmSwap:\t 16 kB\nCpus_allowed_list:\t{cpus}\n"
        )
        self.now_s = 100.0
        self.threads: dict[int, list[float]] = {}
        self.faults = 0
        self.thread(PID)
        self.waits = HostWaits(self.node.proc, self.node.sys)
        self.local: dict[int, frozenset[int]] = {}

    def thread(
        self,
        tid: int,
        run_s: float = 0.0,
        wait_s: float = 0.0,
        io_s: float = 0.0,
        *,
        cpu: int = 0,
        state: str = "S",
    ) -> None:
        """Let a thread do something more."""
        times = self.threads.setdefault(tid, [0.0, 0.0, 0.0])
        for at, more in enumerate((run_s, wait_s, io_s)):
            times[at] += more
        run_ns, wait_ns = round(times[0] * 1e9), round(times[1] * 1e9)
        self.node.write_proc(f"{PID}/task/{tid}/schedstat", f"{run_ns} {wait_ns} 7\n")
        stat = self.stat(tid, times[0], times[2], cpu=cpu, state=state)
        self.node.write_proc(f"{PID}/task/{tid}/stat", stat)
        total_s = sum(run_s for run_s, _, _ in self.threads.values())
        self.node.write_proc(f"{PID}/stat", self.stat(PID, total_s, 0.0, cpu=cpu, state=state))

    def stat(self, tid: int, run_s: float, io_s: float, *, cpu: int, state: str) -> str:
        fields = ["0"] * 50
        fields[0], fields[9], fields[11] = state, str(self.faults), str(round(run_s * TICKS_PER_S))
        fields[19], fields[36], fields[39] = "1000", str(cpu), str(round(io_s * TICKS_PER_S))
        return f"{tid} (a (thread) of it) {' '.join(fields)}\n"

    def collect(self) -> SampleTable | None:
        return self.waits.collect([RANK], self.local, self.now_s, round(self.now_s * 1e9))

    def after(self, seconds: float) -> dict[str, float]:
        """The rank's row after so long."""
        self.now_s += seconds
        table = self.collect()
        assert table is not None
        assert list(table.entities) == ["j/3"]
        return {name: values[0] for name, values in table.columns.items() if not math.isnan(values[0])}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    assert host.collect() is None
    return host


def test_the_share_is_that_of_the_thread_that_waits_most(host: Host) -> None:
    host.thread(PID, run_s=1.0, wait_s=0.5)
    host.collect()
    host.thread(PID, run_s=3.0, wait_s=1.9)

    row = host.after(5.0)

    assert row[RankColumn.CPU_WAIT] == pytest.approx(0.38)
    assert row[RankColumn.CPU_DEMAND] == pytest.approx(4.9 / (5.0 * 4))
    assert row[RankColumn.SWAPPED] == 16 * 1024


def test_time_in_storage_is_a_share_with_delay_accounting(host: Host) -> None:
    host.faults = 50
    host.thread(PID, io_s=2.0)

    row = host.after(5.0)

    assert row[RankColumn.IO_WAIT] == pytest.approx(0.4)
    assert row[RankColumn.MAJOR_FAULTS] == pytest.approx(10.0)


def test_without_delay_accounting_states_over_a_minute_stand_for_it(tmp_path: Path) -> None:
    host = Host(tmp_path, delay_accounting=False)
    host.collect()
    rows = []
    for reading in range(12):
        host.thread(PID, io_s=5.0, state="D" if reading % 2 else "S")
        rows.append(host.after(5.0))

    assert all(RankColumn.IO_WAIT not in row for row in rows[:10])
    assert rows[-1][RankColumn.IO_WAIT] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param("SSSSSSSSSSSS", 0.0, id="never"),
        pytest.param("SDSSSSSSDSSS", None, id="twice"),
        pytest.param("DDDDDDSSSSSS", None, id="a start"),
        pytest.param("SSSSSSSSSDDD", None, id="a checkpoint"),
        pytest.param("SDSSSDSSSSSD", 0.25, id="now and then"),
        pytest.param("SSSSSDDDSSSS", 0.25, id="at the middle"),
    ],
)
def test_states_of_a_moment_are_no_share_of_time(tmp_path: Path, states: str, expected: float | None) -> None:
    host = Host(tmp_path, delay_accounting=False)
    host.collect()
    for state in states:
        host.thread(PID, state=state)
        row = host.after(5.0)

    assert row.get(RankColumn.IO_WAIT) == expected


def test_a_quota_that_is_used_up_counts_by_its_periods(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.node.write_proc(f"{PID}/cgroup", "0::/kubepods/pod1\n")
    stat = "fs/cgroup/kubepods/pod1/cpu.stat"
    host.node.write_sys(stat, "usage_usec 5\nnr_periods 100\nnr_throttled 10\nthrottled_usec 1\n")
    host.collect()
    host.node.write_sys(stat, "usage_usec 5\nnr_periods 150\nnr_throttled 35\nthrottled_usec 9\n")

    assert host.after(5.0)[RankColumn.CPU_THROTTLED] == pytest.approx(0.5)


def test_without_a_quota_nothing_is_throttled_and_nothing_is_claimed(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.node.write_sys("fs/cgroup/cpu.stat", "usage_usec 5\nnr_periods 0\nnr_throttled 0\n")
    host.collect()

    assert RankColumn.CPU_THROTTLED not in host.after(5.0)


def test_threads_far_from_their_gpu_count_by_their_running_time(host: Host) -> None:
    host.node.write_sys("bus/pci/devices/0000:18:00.0/local_cpulist", "0-1\n")
    host.local = {0: local_cpus(host.node.sys, "00000000:18:00.0")}
    host.thread(PID, run_s=1.0, cpu=0)
    host.thread(PID + 1, run_s=1.0, cpu=3)
    host.waits = HostWaits(host.node.proc, host.node.sys)
    host.collect()
    host.thread(PID, run_s=1.0, cpu=0)
    host.thread(PID + 1, run_s=3.0, cpu=3)

    assert host.after(5.0)[RankColumn.REMOTE_NUMA] == pytest.approx(0.75)


def test_other_processes_on_its_cpus_are_what_is_left_of_their_time(tmp_path: Path) -> None:
    host = Host(tmp_path, cpus="0-1")
    busy = "cpu  0 0 0 0\ncpu0 {0} 0 0 0 0\ncpu1 {1} 0 0 0 0\ncpu2 {1} 0 0 0 0\nintr 1\n"
    host.node.write_proc("stat", busy.format(0, 0))
    host.collect()
    host.thread(PID, run_s=2.0)
    host.node.write_proc("stat", busy.format(5 * TICKS_PER_S, 3 * TICKS_PER_S))

    # Of 10 s on two CPUs 8 s were used, 2 s of them by the rank.
    assert host.after(5.0)[RankColumn.OTHERS_CPU] == pytest.approx(0.6)


def test_a_new_process_with_the_id_of_an_old_one_starts_afresh(host: Host) -> None:
    host.thread(PID, wait_s=4.0)
    again = RankPlacement(job="j", rank=3, gpu=0, pid=PID, started_unix_ns=2)
    host.now_s += 5.0

    assert host.waits.collect([again], {}, host.now_s, 1) is None


def test_a_process_that_ended_has_no_row(host: Host) -> None:
    host.node.end_process(PID)
    host.now_s += 5.0

    assert host.collect() is None


def test_a_thread_that_begins_to_work_is_found_within_half_a_minute(host: Host) -> None:
    for number in range(40):
        host.thread(PID + 1 + number, run_s=0.1)
    for _ in range(6):
        host.after(5.0)
    late = PID + 40
    for _ in range(7):
        host.thread(late, wait_s=2.5)
        row = host.after(5.0)

    assert row[RankColumn.CPU_WAIT] == pytest.approx(0.5)


@given(st.binary(max_size=300))
def test_no_content_of_a_file_breaks_a_parser(content: bytes) -> None:
    for parse in (
        parse_task_stat, parse_schedstat, parse_cpu_stat, parse_allowed_cpus, parse_cpu_list,
        parse_cpu_busy_s,
    ):  # fmt: skip
        parse(content)


def test_cgroups_of_both_versions_are_found(tmp_path: Path) -> None:
    for name in ("fs/cgroup/cpu,cpuacct", "fs/cgroup/cpu/job", "fs/cgroup/job"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("fs/cgroup/cpu/job/cpu.stat", "fs/cgroup/job/cpu.stat"):
        (tmp_path / name).write_text("")

    assert cpu_stat_file(tmp_path, b"0::/job\n") == tmp_path / "fs/cgroup/job/cpu.stat"
    assert cpu_stat_file(tmp_path, b"2:cpu,cpuacct:/job\n0::/\n") == tmp_path / "fs/cgroup/cpu/job/cpu.stat"
    assert cpu_stat_file(tmp_path, b"0::/../../other\n") is None


# Real processes of this machine.

LOOP = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass\n"


def _busy(stack: ExitStack, cpu: int, seconds: float) -> subprocess.Popen[bytes]:
    def prepare() -> None:
        os.sched_setaffinity(0, {cpu})

    process = subprocess.Popen([sys.executable, "-c", LOOP.format(seconds=seconds)], preexec_fn=prepare)  # noqa: PLW1509
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


@pytest.fixture
def real() -> Iterator[ExitStack]:
    if not Path("/proc/self/schedstat").is_file():
        pytest.skip("this kernel has no CONFIG_SCHED_INFO")
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
def test_processes_that_share_a_real_cpu_wait_for_it(real: ExitStack) -> None:
    cpu = min(os.sched_getaffinity(0))
    first, *_ = [_busy(real, cpu, 30.0) for _ in range(3)]
    waits = HostWaits(Path("/proc"), Path("/sys"))
    rank = RankPlacement(job="j", rank=0, pid=first.pid, started_unix_ns=1)
    time.sleep(0.3)
    waits.collect([rank], {}, time.monotonic(), 1)
    time.sleep(1.5)
    table = waits.collect([rank], {}, time.monotonic(), 2)

    assert table is not None
    # Of three processes on one CPU each runs a third of the time, and waits for the rest.
    assert table.columns[RankColumn.CPU_WAIT][0] > 0.4
    assert table.columns[RankColumn.CPU_DEMAND][0] > 0.8


def test_a_real_quota_throttles(real: ExitStack) -> None:
    group = Path("/sys/fs/cgroup/cpu") / f"perfd-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("1000")
        (group / "cpu.cfs_period_us").write_text("100000")
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    real.callback(group.rmdir)
    process = _busy(real, min(os.sched_getaffinity(0)), 30.0)
    (group / "cgroup.procs").write_text(str(process.pid))

    def leave() -> None:
        process.kill()
        process.wait()

    real.callback(leave)
    waits = HostWaits(Path("/proc"), Path("/sys"))
    rank = RankPlacement(job="j", rank=0, pid=process.pid, started_unix_ns=1)
    waits.collect([rank], {}, time.monotonic(), 1)
    time.sleep(1.5)
    table = waits.collect([rank], {}, time.monotonic(), 2)

    assert table is not None
    # Where other processes leave it less than its quota in some periods, these have no throttling.
    assert table.columns[RankColumn.CPU_THROTTLED][0] > 0.5


def test_a_rank_costs_little(real: ExitStack) -> None:
    """One of a hundred threads, read as every five seconds: the bound is ten times what was measured."""
    reader = ProcessReader(Path(f"/proc/{os.getpid()}"), cpu_stat=None, delay_accounting=False)
    reader.read(0.0, scan=True)
    begun_s = time.thread_time()
    for reading in range(60):
        reader.read(float(reading), scan=False)
    assert (time.thread_time() - begun_s) / 60 / 5.0 < 0.003


def test_ranks_of_one_process_have_a_row_each(tmp_path: Path) -> None:
    host = Host(tmp_path)
    ranks = [RankPlacement(job="j", rank=rank, gpu=rank, pid=PID, started_unix_ns=1) for rank in (0, 1)]
    host.waits.collect(ranks, {}, 100.0, 0)
    table = host.waits.collect(ranks, {}, 101.0, 0)
    assert table is not None
    assert list(table.entities) == ["j/0", "j/1"]
