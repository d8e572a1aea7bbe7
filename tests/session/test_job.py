"""`perfd run` around real processes, with a monitor that only swallows what it is fed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

RUN = """
import sys
from perfd.session.job.child_process import CommandError
from perfd.session.supervisor import MonitorSettings, SupervisorOptions, run
monitor, launcher, command = sys.argv[1], sys.argv[2] == "launcher", sys.argv[3:]
options = SupervisorOptions(
    command=command,
    launcher=launcher,
    settings=MonitorSettings(job="test", command=command),
    monitor=(sys.executable, "-c", monitor),
)
try:
    sys.exit(run(options, say=lambda sentence: print(sentence, file=sys.stderr, flush=True)))
except CommandError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
SWALLOW = "import sys; sys.stdin.buffer.read()"

SAY_WHEN_SIGNALLED = """
import os, signal, sys
seen = []
signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
os.write(1, b"ready %d\\n" % os.getpid())
while True:
    number = signal.sigwait(signals)
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        sys.exit(3)
"""


def arguments(command: list[str], monitor: str = SWALLOW, *, launcher: bool = False) -> list[str]:
    return [sys.executable, "-c", RUN, monitor, "launcher" if launcher else "command", *command]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run(command: list[str], *, monitor: str = SWALLOW, **options) -> subprocess.CompletedProcess[bytes]:
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(arguments(command, monitor), capture_output=True, check=False, **options)


def start(command: list[str], **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        arguments(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def gone(pid: int) -> None:
    """Return when the process has ended; the test's own timeout is the limit."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([descriptor], [], [])
    os.close(descriptor)


@pytest.mark.parametrize("code", [0, 1, 2, 77, 255])
def test_the_exit_code_is_the_commands(code):
    assert run(python(f"raise SystemExit({code})")).returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_exit_code_of_a_killed_command_is_that_of_a_shell(number):
    assert run(python(f"import os; os.kill(os.getpid(), {int(number)})")).returncode == 128 + number


def test_a_command_that_is_not_there_is_named():
    done = run(["no-such-command-here"])
    assert (done.returncode, done.stderr) == (127, b"no-such-command-here: command not found.\n")


def test_a_file_that_may_not_be_executed_is_named(tmp_path):
    (tmp_path / "data").write_text("")
    done = run([str(tmp_path / "data")])
    assert done.returncode == 126
    assert b"permission denied" in done.stderr


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("exit 3\n", 126, "not a program, and its first line names no interpreter, such as #!/bin/bash."),
        ("#!/no/such/shell\n", 127, "the interpreter in its first line does not exist."),
    ],
)
def test_what_a_script_lacks_to_be_executed_is_reported(tmp_path, content, code, words):
    script = tmp_path / "train.sh"
    script.write_text(content)
    script.chmod(0o755)
    done = run([str(script)])
    assert done.returncode == code
    assert done.stderr.decode().endswith(f"{words}\n")


def test_binary_output_without_a_line_end_passes_unchanged():
    done = run(python("import os; os.write(1, bytes(range(256)) * 1000); os.write(2, b'\\r50%\\x00\\xff')"))
    assert done.stdout == bytes(range(256)) * 1000
    assert done.stderr == b"\r50%\x00\xff"


def test_standard_input_reaches_the_command():
    done = run(["cat"], stdin=None, input=b"typed")
    assert done.stdout == b"typed"


def test_output_and_errors_that_go_to_one_place_keep_their_order(tmp_path):
    code = "import os\nfor i in range(500): os.write(1 + i % 2, b'%d\\n' % i)"
    with (tmp_path / "log").open("wb") as log:
        subprocess.run(arguments(python(code)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
    assert (tmp_path / "log").read_bytes() == b"".join(b"%d\n" % i for i in range(500))


def test_a_command_that_closes_its_output_is_still_waited_for(tmp_path):
    code = f"import os, pathlib; os.close(1); os.close(2); pathlib.Path({str(tmp_path / 'done')!r}).touch()"
    assert run(python(code)).returncode == 0
    assert (tmp_path / "done").exists()


def test_a_daemon_that_a_command_leaves_behind_is_not_waited_for():
    code = "import os, time\nif os.fork(): os._exit(5)\nprint(os.getpid(), flush=True); time.sleep(600)"
    done = run(python(code))
    assert done.returncode == 5
    os.kill(int(done.stdout), signal.SIGKILL)


def test_a_reader_that_leaves_ends_the_command_as_it_would_without_perfd():
    process = start(
        python(
            "import signal, os; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nwhile 1: os.write(1, b'y\\n')"
        )
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert process.wait() == 128 + signal.SIGPIPE
    process.stderr.close()


@pytest.mark.parametrize(
    "monitor",
    [
        "raise SystemExit(1)",
        "import os; os.kill(os.getpid(), 9)",
        "import sys; sys.stdin.buffer.read(1000); 1/0",
    ],
)
def test_a_monitor_that_fails_leaves_the_job_alone_and_is_reported(monitor):
    done = run(python("import os\nfor _ in range(1000): os.write(1, b'x' * 10000)"), monitor=monitor)
    assert done.returncode == 0
    assert len(done.stdout) == 10_000_000
    assert b"the monitor failed" in done.stderr


def test_a_monitor_that_never_reads_does_not_hold_up_the_job():
    read_fd, write_fd = os.pipe()
    # It hangs until we let it go, which is after the job has printed more than any queue holds.
    hanging = f"import os; os.read({read_fd}, 1)"
    process = subprocess.Popen(
        arguments(python("import os\nfor _ in range(64): os.write(1, b'x' * 1000000)"), hanging),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[read_fd],
    )  # fmt: skip
    assert process.stdout is not None
    assert len(process.stdout.read(64_000_000)) == 64_000_000
    os.close(write_fd)
    process.communicate()
    os.close(read_fd)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
)
def test_a_signal_reaches_the_command_once_and_its_exit_code_comes_back(number):
    process = start(python(SAY_WHEN_SIGNALLED))
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready")
    process.send_signal(number)
    assert process.stdout.readline() == number.name.encode() + b"\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert out == b"SIGTERM\n"
    assert process.returncode == 3


def test_a_signal_reaches_the_processes_that_a_script_started():
    inner = f"{sys.executable} -c '{SAY_WHEN_SIGNALLED}'"
    process = start(["bash", "-c", f"trap '' TERM; {inner}; exit 9"])
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert (out, process.returncode) == (b"SIGTERM\n", 9)


def test_a_command_does_not_inherit_blocked_signals_or_an_ignored_sigpipe():
    code = (
        "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), open('/proc/self/status').read())"
    )
    out = run(python(code)).stdout.decode()
    bare = subprocess.run(python(code), capture_output=True, check=True).stdout.decode()
    wanted = ("SigBlk", "SigIgn")
    assert [line for line in out.splitlines() if line.startswith(wanted)] == [
        line for line in bare.splitlines() if line.startswith(wanted)
    ]
    assert out.startswith("set()")


def test_a_killed_perfd_does_not_leave_its_command_behind():
    process = start(python(SAY_WHEN_SIGNALLED))
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[1])
    process.kill()
    gone(pid)
    process.communicate()


def test_a_pending_end_of_the_command_is_not_mistaken_for_a_signal_to_hand_on():
    # A child of the command ends while perfd waits: SIGCHLD is not ours to forward.
    assert run(["bash", "-c", "true & wait; exit 4"]).returncode == 4


LAUNCHER = """
import signal, subprocess, sys
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
app = subprocess.Popen(sys.argv[1:], start_new_session=True)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda received, _: app.send_signal(received))
sys.exit(app.wait())
"""
"""What `nsys launch` 2025.3.1 does: the application has a session of its own, and gets two signals."""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
)
def test_a_signal_gets_past_a_launcher_once_and_does_not_end_it(number):
    inner = [sys.executable, "-c", LAUNCHER, *python(SAY_WHEN_SIGNALLED)]
    process = subprocess.Popen(
        arguments(inner, launcher=True),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready")
    process.send_signal(number)
    assert process.stdout.readline() == number.name.encode() + b"\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert (out, process.returncode) == (b"SIGTERM\n", 3)


class Terminal:
    """A terminal with `perfd run` as its foreground process, as a user's shell would have it."""

    def __init__(self, command: list[str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x28\0\x78\0\0\0\0\0")
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *arguments(command)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self.seen = b""

    def read_until(self, wanted: bytes) -> bytes:
        while wanted not in self.seen:
            try:
                chunk = os.read(self.master, 4096)
            except OSError:
                chunk = b""
            assert chunk, self.seen
            self.seen += chunk
        before, _, self.seen = self.seen.partition(wanted)
        return before + wanted

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self) -> int:
        code = self.process.wait()
        os.close(self.master)
        return code


@pytest.fixture
def terminal():
    made: list[Terminal] = []

    def make(command: list[str]) -> Terminal:
        made.append(Terminal(command))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_on_a_terminal_the_command_sees_a_terminal_of_the_same_size(terminal):
    code = "import os, sys; print([os.isatty(fd) for fd in range(3)], os.get_terminal_size(1))"
    session = terminal(python(code))
    assert b"[True, True, True] os.terminal_size(columns=120, lines=40)\r\n" in session.read_until(
        b"lines=40)\r\n"
    )
    assert session.end() == 0


SAY_SIZES = """
import os, signal
# Blocked and waited for: a handler's signal just before a pause() would be seen after it only.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
print("ready", flush=True)
while True:
    signal.sigwait({signal.SIGWINCH})
    print(*{os.get_terminal_size(fd).columns for fd in range(3)}, flush=True)
"""


def test_after_a_new_size_the_last_signal_finds_it_on_every_stream(terminal):
    session = terminal(python(SAY_SIZES))
    session.read_until(b"ready\r\n")
    for columns in (90, 91, 92, 93):
        fcntl.ioctl(session.master, termios.TIOCSWINSZ, bytes([50, 0, columns, 0, 0, 0, 0, 0]))
        # The signal of the terminal itself may come before the job's own terminal has the size.
        while session.read_until(b"\r\n") != b"%d\r\n" % columns:
            pass
    os.kill(session.process.pid, signal.SIGTERM)
    session.end()


def test_the_modes_of_standard_output_are_those_of_the_terminal_except_for_translation(terminal):
    code = "import termios; print(*({termios.tcgetattr(fd)[3] for fd in range(3)}), 'modes')"
    session = terminal(python(code))
    assert len(session.read_until(b" modes").split()) == 2
    session.end()


def test_a_line_is_not_translated_twice_on_a_terminal(terminal):
    session = terminal(python("print('a\\nb')"))
    assert session.read_until(b"b\r\n").endswith(b"a\r\nb\r\n")
    session.end()


def test_control_c_reaches_the_command_once(terminal):
    session = terminal(python(SAY_WHEN_SIGNALLED))
    session.read_until(b"ready")
    session.type(b"\x03")
    session.read_until(b"SIGINT\r\n")
    os.kill(session.process.pid, signal.SIGUSR1)
    # Had the first come twice, the second SIGINT would stand before this.
    assert b"SIGINT" not in session.read_until(b"SIGUSR1\r\n")
    os.kill(session.process.pid, signal.SIGTERM)
    session.read_until(b"SIGTERM\r\n")
    assert session.end() == 3


def test_what_is_typed_on_a_terminal_reaches_the_command(terminal):
    session = terminal(python("print('got', input('name? '))"))
    session.read_until(b"name? ")
    session.type(b"perf\n")
    session.read_until(b"got perf\r\n")
    assert session.end() == 0


def test_a_command_in_a_terminal_that_closes_gets_the_signal(terminal):
    session = terminal(
        python(SAY_WHEN_SIGNALLED.replace("number == signal.SIGTERM", "number == signal.SIGHUP"))
    )
    session.read_until(b"ready ")
    pid = int(session.read_until(b"\r\n"))
    os.close(session.master)
    gone(pid)
    session.process.wait()


def test_standard_output_on_a_terminal_and_errors_in_a_file_stay_apart(terminal, tmp_path):
    code = "import os; os.write(1, b'out %d' % os.isatty(1)); os.write(2, b'err %d' % os.isatty(2))"
    log: Path = tmp_path / "log"
    inner = [*arguments(python(code))]
    session = Terminal.__new__(Terminal)
    session.master, slave = pty.openpty()
    session.seen = b""
    with log.open("wb") as errors:
        session.process = subprocess.Popen(inner, stdin=subprocess.DEVNULL, stdout=slave, stderr=errors)
    os.close(slave)
    session.read_until(b"out 1")
    assert session.end() == 0
    assert log.read_bytes() == b"err 0"


def test_an_error_after_the_end_of_the_job_does_not_change_its_exit_code():
    failing = (
        "from perfd.session.channel import MonitorChannel\n"
        "def fail(*_):\n    raise OSError(22, 'Invalid argument')\n"
        f"MonitorChannel.close = fail\n{RUN}"
    )
    words = [sys.executable, "-c", failing, SWALLOW, "command", *python("raise SystemExit(3)")]

    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (3, b"perfd: no summary: [Errno 22] Invalid argument.\n")


def test_a_monitor_that_does_not_end_is_given_up_with_a_sentence():
    hurried = f"import perfd.session.supervisor\nperfd.session.supervisor.SUMMARY_LIMIT_S = 0.1\n{RUN}"
    hanging = f"import signal; {SWALLOW}; signal.pause()"
    words = [sys.executable, "-c", hurried, hanging, "command", *python("raise SystemExit(3)")]

    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    assert done.returncode == 3
    assert done.stderr == (
        b"perfd: no summary: the monitor did not end within 0.1 s after the job. See /dev/null.\n"
    )


SUM_UP_LATER = """
import pathlib, sys, time
sys.stdin.buffer.read()
folder = pathlib.Path({folder!r})
(folder / "began").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
(folder / "saved").touch()
"""


@pytest.fixture
def summing_up(tmp_path):
    """A run whose job has ended and whose monitor is at its summary, until the file `go` exists."""
    monitor = SUM_UP_LATER.format(folder=str(tmp_path))
    process = subprocess.Popen(
        arguments(python("raise SystemExit(3)"), monitor), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()
    process.stderr.close()


def test_a_time_limit_that_comes_just_after_the_job_does_not_cost_the_summary(summing_up, tmp_path):
    summing_up.send_signal(signal.SIGTERM)
    # The signal arrives before anything else that the process does.
    (tmp_path / "go").touch()

    assert (summing_up.stderr.read(), summing_up.wait()) == (b"", 3)
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_after_the_job_skips_the_summary(summing_up, tmp_path, number):
    summing_up.send_signal(signal.SIGTERM)
    said: list[object] = []
    while not said:
        # Two of a kind that come at once are one.
        summing_up.send_signal(number)
        said, _, _ = select.select([summing_up.stderr], [], [], 0.01)

    sentence = f"perfd: no summary: interrupted by {number.name}.\n".encode()
    assert (summing_up.stderr.read(), summing_up.wait()) == (sentence, 3)
    assert not (tmp_path / "saved").exists()
