"""A process that `perfd run --kineto` started does not end before the window of its capture."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from perfd.capture.kineto.at_exit import FOLDER, waits_at_exit, with_wait_at_exit
from perfd.capture.node.trace_directory import plan_trace_directory

PATIENCE_S = 60.0
FAR_UNIX_S = 4e9
WITH_TORCH = "import torch, sys; print('runs', flush=True); sys.stdin.readline(); sys.exit(3)"
WITHOUT = WITH_TORCH.replace("torch, ", "")


class Process:
    """A Python process that ends with 3 when it is told to."""

    def __init__(self, place, code, modules):
        environment = {"KINETO_ONDEMAND_TRACE_DIR": str(place), "PYTHONPATH": str(modules)}
        self.popen = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=with_wait_at_exit({**os.environ, **environment}),
        )
        self.pid = self.popen.pid
        assert self.popen.stdout.readline() == "runs\n"
        self.box = plan_trace_directory(
            Path("/proc"), self.pid, str(place), source="a test", profiler="kineto"
        )

    def mark(self, until_unix_s=FAR_UNIX_S, uid=None):
        self.box.mark(self.pid, until_unix_s, os.geteuid() if uid is None else uid, os.getegid())

    def end(self):
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def ends(self, within_s=PATIENCE_S):
        """Whether its output closes so soon, as it does when it ends."""
        return bool(select.select([self.popen.stdout], [], [], within_s)[0])


@pytest.fixture
def start(tmp_path):
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "torch.py").touch()
    started = []

    def start(code=WITH_TORCH):
        started.append(Process(tmp_path, code, modules))
        return started[-1]

    yield start
    for process in started:
        process.popen.kill()
        process.popen.communicate()


def marks(place):
    return [path.name for path in place.iterdir() if path.name.startswith("perfd-kineto-")]


def test_it_ends_as_it_wanted_to_when_the_trace_is_there(start):
    process = start()
    process.mark()
    process.end()
    assert not process.ends(1.0)
    process.box.unmark(process.pid)
    assert process.popen.wait(PATIENCE_S) == 3


def test_it_does_not_wait_for_a_window_that_is_over_and_leaves_no_mark(start, tmp_path):
    process = start()
    process.mark(until_unix_s=1.0)
    assert marks(tmp_path) == [f"perfd-kineto-until-{process.pid}"]
    process.end()
    assert process.popen.wait(PATIENCE_S) == 3
    assert marks(tmp_path) == []


def test_without_a_capture_or_without_torch_it_just_ends(start):
    process = start()
    process.end()
    assert process.popen.wait(PATIENCE_S) == 3
    process = start(WITHOUT)
    process.mark()
    process.end()
    assert process.popen.wait(PATIENCE_S) == 3


def test_a_mark_that_is_no_time_holds_nobody(start, tmp_path):
    process = start()
    (tmp_path / f"perfd-kineto-until-{process.pid}").write_text("for ever")
    process.end()
    assert process.popen.wait(PATIENCE_S) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user's")
def test_another_users_mark_holds_nobody(start):
    process = start()
    process.mark(uid=65534)
    process.end()
    if process.ends():
        assert process.popen.wait(PATIENCE_S) == 3


def test_the_jobs_own_sitecustomize_runs_too(start, tmp_path):
    (tmp_path / "modules" / "sitecustomize.py").write_text("import sys; sys.theirs = __file__")
    code = WITH_TORCH.replace("print('runs'", "print('runs' if 'modules' in sys.theirs else ''")
    process = start(code)
    process.mark()
    process.end()
    assert not process.ends(1.0)


def test_what_a_process_was_started_with_shows_whether_it_waits(start):
    process = start()
    assert waits_at_exit(Path("/proc"), process.pid)
    assert not waits_at_exit(Path("/proc"), os.getpid())


def test_the_folder_comes_before_what_the_user_has():
    assert with_wait_at_exit({"PYTHONPATH": "/a:/b"})["PYTHONPATH"] == f"{FOLDER}:/a:/b"
    assert with_wait_at_exit({})["PYTHONPATH"] == str(FOLDER)
