"""How busy the threads that launch work and the workers that load data were, by a /proc of our own."""

from __future__ import annotations

from pathlib import Path

from perfd_collectors.nccl.launch_threads import LaunchThreads

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
