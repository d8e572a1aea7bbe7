"""What a reader in the sandbox can still do: compute, and answer."""

import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from perfd.errors import SandboxError
from perfd.sandbox import Sandbox
from perfd.sandbox.system_call_filter import Machine, filter_program

READER = "untrusted_reader:reader"
ALLOWED, REFUSED, KILLED = 0x7FFF0000, 0x00050001, 0x80000000


@pytest.fixture
def sandbox(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with closing(Sandbox(READER)) as opened:
        yield opened


@pytest.mark.parametrize(
    "message",
    [
        "open /etc/hostname",
        "open /proc/self/environ",
        "write /dev/null",
        "run /bin/true",
        "fork",
        "connect",
        "signal 1",
        "become 0",
        f"allocate {2 << 30}",
        "recurse",
    ],
)
def test_it_can_open_start_and_reach_nothing_and_goes_on_after_the_attempt(sandbox, message):
    with pytest.raises(SandboxError, match=r"not permitted|MemoryError|recursion"):
        sandbox.ask(message.encode())
    assert sandbox.ask(b"compute") == b"compute"


def test_it_has_no_user_no_capability_and_a_filter(sandbox):
    lines = Path(f"/proc/{sandbox.pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert status["NoNewPrivs"] == ["1"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[kind][0], 16) == 0
    if os.geteuid() == 0:
        assert status["Uid"] == status["Gid"] == ["65534"] * 4
        assert status["Groups"] == []
    assert sandbox.filters_system_calls
    assert status["Seccomp"] == ["2"]


def test_one_that_ends_is_a_sentence_and_takes_nobody_with_it(sandbox):
    with pytest.raises(SandboxError, match="ended with 7"):
        sandbox.ask(b"end 7")
    with pytest.raises(SandboxError, match="ended with 7"):
        sandbox.ask(b"compute")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_ends_all_processes_of_an_agent_leaves_its_reader(sandbox, number):
    os.kill(sandbox.pid, number)
    assert sandbox.ask(b"compute") == b"compute"
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_one_that_does_not_answer_is_ended(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with closing(Sandbox(READER, answers_within_s=0.5)) as opened:
        with pytest.raises(SandboxError, match="took too long"):
            opened.ask(b"wait 600")
        assert not Path(f"/proc/{opened.pid}").exists()


def test_it_ends_when_the_agent_does(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    code = "import os; from perfd.sandbox import Sandbox; "
    code += f"print(Sandbox({READER!r}).pid, flush=True); os._exit(9)"
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 9
    process = Path(f"/proc/{ended.stdout.strip()}")
    for _ in range(600):
        if not process.exists() or "Z" in (process / "stat").read_text().split()[2]:
            break
        ctypes.CDLL(None).usleep(50_000)
    else:
        pytest.fail("it is still there")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to give up rights"
)
@pytest.mark.parametrize("capabilities", ["-all", "-all,+dac_override,+sys_ptrace", "-all,+setuid,+setgid"])
def test_it_has_no_capability_even_where_it_cannot_become_another_user(monkeypatch, capabilities):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    code = f"""
from perfd.sandbox import Sandbox
s = Sandbox({READER!r})
for line in open(f"/proc/{{s.pid}}/status"):
    if line.startswith(("Uid", "CapEff")):
        print(line.split()[1])
try:
    s.ask(b"open /etc/shadow")
except Exception as error:
    print(error)
s.close()
"""
    limits = ["setpriv", f"--bounding-set={capabilities}", "--no-new-privs"]
    shown = subprocess.run(
        [*limits, sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    uid, effective, refused = shown.stdout.splitlines()
    assert uid == ("65534" if "setuid" in capabilities else "0")
    assert int(effective, 16) == 0
    assert "not permitted" in refused


def test_other_processes_of_its_user_can_not_read_its_memory():
    code = """
import ctypes, encodings.ascii, os
from perfd.sandbox.confinement import confine
if os.geteuid() == 0:
    os.setresuid(65533, 65533, 65533)
    # Another user than before is not dumpable: as one that was always this user.
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
for finish in (lambda: None, confine):
    finish()
    os.write(1, b"x")
    os.read(0, 1)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        owners = []
        for _ in range(2):
            assert process.stdout.read(1) == b"x"
            owners.append(Path(f"/proc/{process.pid}/environ").stat().st_uid)
            process.stdin.write(b"x")
            process.stdin.flush()
    # proc(5): what belongs to a process that is not dumpable is root's.
    assert owners[0] != 0
    assert owners[1] == 0


def outcome(program, architecture, number, argument=0):
    """What the kernel does: the filter, interpreted."""
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            accumulator = {0: number, 4: architecture, 16: argument}[value]
        elif code == 0x15:
            at += if_true if accumulator == value else if_false
        elif code == 0x35:
            at += if_true if accumulator >= value else if_false
        else:
            return value


@pytest.mark.parametrize("architecture", [0xC000003E, 0xC00000B7])
def test_the_filter_allows_the_listed_calls_of_its_own_architecture_only(architecture):
    calls = [0, 1, 9, 60, 231, 334]
    program = filter_program(Machine(audit_architecture=architecture, allowed=calls, denied=[]))
    for number in range(600):
        assert outcome(program, architecture, number) == (ALLOWED if number in calls else REFUSED)
    # The second table of x86_64 has the same numbers with a bit set.
    assert outcome(program, architecture, 0x40000000) == REFUSED
    assert outcome(program, architecture ^ 1, 0) == KILLED
