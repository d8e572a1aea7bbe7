"""How busy the threads that launch work and the workers that load data were, by a /proc of our own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perfd_collectors.launch_threads.collector import LaunchThreads

RANK = 100


def put(proc: Path, pid: int, tid: int, name: str, ran_s: float, waited_s: float = 0.0) -> None:
    task = proc / str(pid) / "task" / str(tid)
    task.mkdir(parents=True, exist_ok=True)
    (task / "comm").write_text(name + "\n")
    (task / "schedstat").write_text(f"{int(ran_s * 1e9)} {int(waited_s * 1e9)} 7\n")


def children(proc: Path, *pids: int) -> None:
    (proc / str(RANK) / "task" / str(RANK) / "children").write_text(" ".join(map(str, pids)))


def test_main_and_autograd_threads_launch_and_other_threads_do_not(tmp_path: Path) -> None:
    def at(main_s: float, autograd_s: float) -> None:
        put(tmp_path, RANK, RANK, "python3", main_s, 0.25)
        put(tmp_path, RANK, 101, "pt_autograd_0", 1.0, autograd_s)
        put(tmp_path, RANK, 102, "pt_nccl_watchdg", 50 * main_s)

    at(10.0, 5.0)
    threads = LaunchThreads(tmp_path, RANK)

    assert threads.read() == {"launch_threads_busy_s": 0.0}
    at(10.5, 5.25)
    assert threads.read() == {"launch_threads_busy_s": 0.75}


def test_workers_are_counted_together_and_one_that_comes_later_from_then_on(tmp_path: Path) -> None:
    put(tmp_path, RANK, RANK, "python3", 1.0)
    put(tmp_path, RANK, 101, "pt_autograd_0", 1.0)
    for worker, ran_s in ((200, 3.0), (201, 4.0), (300, 9.0)):
        put(tmp_path, worker, worker, "ssh" if worker == 300 else "pt_data_worker", ran_s)
    children(tmp_path, 200, 300)
    threads = LaunchThreads(tmp_path, RANK)

    assert threads.read()["loader_workers"] == 1.0
    put(tmp_path, 200, 200, "pt_data_worker", 3.5)
    children(tmp_path, 200, 201, 300)
    found = threads.read()
    assert (found["loader_workers"], found["loader_workers_busy_s"]) == (2.0, 0.5)
    put(tmp_path, 201, 201, "pt_data_worker", 4.25)
    # The first one's id belongs to another process now, which has done less.
    put(tmp_path, 200, 200, "pt_data_worker", 0.5)
    assert threads.read()["loader_workers_busy_s"] == 0.75


def test_an_autograd_thread_that_begins_later_is_found(tmp_path: Path) -> None:
    put(tmp_path, RANK, RANK, "python3", 1.0)
    threads = LaunchThreads(tmp_path, RANK)
    assert threads.read() == {}
    put(tmp_path, RANK, 101, "pt_autograd_0", 2.0)
    for second in range(40):
        put(tmp_path, RANK, 101, "pt_autograd_0", 2.0 + second)
        found = threads.read()

    assert found["launch_threads_busy_s"] > 30


def test_a_process_that_is_gone_or_without_the_kernels_counters_says_nothing(tmp_path: Path) -> None:
    assert LaunchThreads(tmp_path, RANK).read() == {}
    put(tmp_path, RANK, RANK, "python3", 1.0)
    (tmp_path / str(RANK) / "task" / str(RANK) / "schedstat").write_text("x y\n")
    assert LaunchThreads(tmp_path, RANK).read() == {}


def test_what_a_process_reads_and_writes_counts_by_calls_or_by_storage(tmp_path: Path) -> None:
    def at(called: int, stored: int) -> None:
        file.write_text(f"rchar: {called}\nwchar: 5\nread_bytes: 7\nwrite_bytes: {stored}\nsyscr: 1\n")

    put(tmp_path, RANK, RANK, "python3", 1.0)
    file = tmp_path / str(RANK) / "io"
    threads = LaunchThreads(tmp_path, RANK)
    at(1000, 500)
    assert threads.read() == {"io_bytes": 0.0}
    at(1400, 500)
    assert threads.read() == {"io_bytes": 400.0}
    # A call that writes for long has not returned.
    at(1400, 4500)
    assert threads.read() == {"io_bytes": 4400.0}
    # The id belongs to another process.
    at(10, 0)
    assert threads.read() == {"io_bytes": 4400.0}
    file.write_text("rchar: 10\n")
    assert threads.read() == {}


def test_a_real_process_that_writes_a_file_is_seen_and_one_that_waits_is_not(tmp_path: Path) -> None:
    code = """
import sys
for line in sys.stdin:
    if line == "write\\n":
        with open(sys.argv[1], "wb") as file:
            for _ in range(8):
                file.write(bytes(1 << 20))
    print("done", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "checkpoint.pt")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def answer(word: str) -> float:
            print(word, file=child.stdin, flush=True)
            assert child.stdout is not None
            assert child.stdout.readline() == "done\n"
            return threads.read()["io_bytes"]

        threads = LaunchThreads(Path("/proc"), child.pid)
        answer("wait")
        waited = answer("wait")
        assert answer("write") - waited >= 8 << 20
        assert waited < 1 << 16
        child.stdin.close()
