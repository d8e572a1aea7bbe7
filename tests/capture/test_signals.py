"""Jobs that `perfd run` started under `nsys launch` end as their user wants, with all their processes."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfd.clock import SystemClock
from perfd.session.job.child_process import groups_below
from tests.support.nsys_installation import install

SCRIPT = "echo $$ > {folder}/script; sh -c 'echo $$ > {folder}/worker; exec sleep 3600'; exit 3"
"""A script whose worker is a process of its own, as `bash train.sh` has them."""
PATIENCE_S = 30


def until(holds):
    clock = SystemClock()
    deadline = clock.monotonic_s() + PATIENCE_S
    while not holds():
        assert clock.monotonic_s() < deadline, "it never became true"
        clock.sleep(0.02)


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Run:
    """`perfd run` with a script under the stand-in nsys, on a terminal."""

    def __init__(self, folder):
        nsys = install(folder / "nsys")
        config = folder / "perfd.yaml"
        config.write_text(
            f"agent: {{capture: {{nsys_path: '{nsys}'}}}}\naggregator: {{http_listen: '127.0.0.1:0'}}\n"
        )
        self.folder = folder
        self.terminal, slave = pty.openpty()
        self.process = subprocess.Popen(
            [
                *("setsid", "--ctty", sys.executable, "-m", "perfd", "run"),
                *("--config", config, "--out", folder / "out"),
                *("--", "bash", "-c", SCRIPT.format(folder=folder)),
            ],
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)

    def started(self):
        worker = self.folder / "worker"
        until(lambda: worker.is_file() and worker.read_text().endswith("\n"))
        return [int((self.folder / name).read_text()) for name in ("script", "worker")]

    def drain(self):
        try:
            while os.read(self.terminal, 4096):
                pass
        except OSError:
            return


@pytest.fixture
def started(tmp_path):
    run = Run(tmp_path)
    yield run
    for group in groups_below(run.process.pid) if run.process.poll() is None else ():
        os.killpg(group, signal.SIGKILL)
    run.process.kill()
    run.process.wait()
    os.close(run.terminal)


def test_control_c_ends_the_script_and_its_worker(started):
    script, worker = started.started()
    assert os.getsid(script) != os.getsid(started.process.pid)
    os.write(started.terminal, b"\x03")
    started.drain()
    until(lambda: not runs(script) and not runs(worker))
    started.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_script_and_its_worker(started, number):
    script, worker = started.started()
    started.process.send_signal(number)
    started.drain()
    until(lambda: not runs(script) and not runs(worker))
    started.process.wait()
