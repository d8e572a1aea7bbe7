"""What a command can still do whose parser of traces was taken over: read its traces, write its report."""

import json
import os
import subprocess
import sys

import pytest
from sandbox.test_sandbox import ALLOWED, KILLED, REFUSED, outcome

from perfd.capture.nsys.nsys_cli import NsysCli
from perfd.sandbox.system_call_filter import Machine, deny_program
from perfd.trace.readers.decompress import exported
from tests.support.traces import COMPUTE, Op, kineto, write_json

ATTEMPTS = """
import errno, json, os, signal, socket, sys, tempfile
from pathlib import Path

def attempts(trace, folder, secret):
    def tried(action):
        try:
            action()
        except OSError as error:
            return errno.errorcode[error.errno]
        return "done"
    def run(program):
        child = os.fork()
        if child == 0:
            try:
                os.execv(program, [program])
            except OSError as error:
                os._exit(error.errno)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            raise OSError(code, "")
    found = {
        "read another file": tried(lambda: Path(secret).read_text()),
        "list its folder": tried(lambda: os.listdir(Path(secret).parent)),
        "read accounts": tried(lambda: Path("/etc/passwd").read_text()),
        "write beside it": tried(lambda: Path(secret).with_name("new").touch()),
        "remove it": tried(lambda: os.unlink(secret)),
        "link to it": tried(lambda: os.symlink(secret, Path(folder) / "link")),
        "change its mode": tried(lambda: os.chmod(secret, 0o777)),
        "run a program": tried(lambda: run("/bin/true")),
        "connect": tried(lambda: socket.create_connection(("127.0.0.1", 9))),
        "signal its parent": tried(lambda: os.kill(os.getppid(), 0)),
        "become a user": tried(lambda: os.setresuid(1, 1, 1)),
        "read the trace": tried(lambda: Path(trace).read_bytes()),
        "write a report": tried(lambda: (Path(folder) / "attempts").touch()),
        "make a temporary file": tried(lambda: tempfile.TemporaryFile().close()),
    }
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    status = {line[0][:-1]: line[1] for line in lines if len(line) > 1}
    found["capabilities"] = int(status["CapEff"], 16)
    found["no new privileges"] = status["NoNewPrivs"]
    return found
"""
ALONE = """
from perfd.sandbox.file_confinement import confine_to_files
trace, folder, secret = sys.argv[1:]
assert confine_to_files([Path(trace)], [Path(folder)])
print(json.dumps(attempts(trace, folder, secret)))
"""
TAKEN_OVER = """
import perfd.trace.readers.kineto_reader as reader
trace, folder, secret = sys.argv[1:]
read = reader.read

def taken_over(*arguments, **options):
    (Path(folder) / "found.json").write_text(json.dumps(attempts(trace, folder, secret)))
    return read(*arguments, **options)

reader.read = taken_over
sys.argv = ["perfd", "analyze", trace, "--report", folder + "/report.html"]
from perfd.cli import main
sys.exit(main())
"""
MEASURED = """
import perfd.trace.readers.kineto_reader as reader
trace, folder, secret = sys.argv[1:]

def taken_over(*arguments, **options):
    print(json.dumps(attempts(trace, folder, secret)), flush=True)
    os._exit(0)

reader.read = taken_over
module = Path(secret).with_name("module.txt")
module.write_text("%dot.1 = f32[8,8] dot(f32[8,8] %a, f32[8,8] %b)\\n")
sys.argv = ["perfd", "roofline", "--hlo", str(module), "--trace", trace]
from perfd.cli import main
sys.exit(main())
"""
REDACTION = """
import perfd.capture.redact.redaction as redaction
from perfd.sandbox import confined_call
trace, folder, secret = sys.argv[1:]

def taken_over(source, copy):
    copy.write_text(json.dumps(attempts(source, folder, secret)))

redaction.redact = taken_over
copy = Path(folder) / "copy"
copy.touch()
files = {"read": [trace], "write": [str(copy)], "options": []}
sys.argv[1:] = ["perfd.capture.redact.redaction:redact", json.dumps(files)]
sys.exit(confined_call.main())
"""
CHECKER = """
import importlib, perfd.capture.kineto.kineto_tool, perfd.capture.jax.jax_tool, perfd.capture.nsys.nsys_tool
from perfd.sandbox import confined_call
kind, trace, folder, secret = sys.argv[1:]
tool = importlib.import_module(f"perfd.capture.{kind}")
module, _, name = tool.CHECK_FUNCTION.partition(":")
setattr(sys.modules[module], name, lambda trace, *_: attempts(trace, folder, secret))
sys.argv[1:] = [tool.CHECK_FUNCTION, json.dumps({"read": [trace], "write": [], "options": [True, None]})]
sys.exit(confined_call.main())
"""
EXPORTER = """#!{python}
{attempts}
report, made, secret = sys.argv[-1], sys.argv[sys.argv.index("{output}") + 1], "{secret}"
found = attempts(report, Path(made).parent, secret)
found["run another program"] = "done" if os.system("{secret}.sh 2>/dev/null") == 0 else "EACCES"
found["limit its parent"] = "done"
try:
    import resource
    resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))
except PermissionError:
    found["limit its parent"] = "EPERM"
resource.getrlimit(resource.RLIMIT_NOFILE)
Path(made).write_text(json.dumps(found))
"""


@pytest.fixture
def places(tmp_path):
    """A trace, a folder for results, a file of somebody else, and where temporary files go."""
    for name in ("in", "out", "other", "temporary"):
        (tmp_path / name).mkdir()
    trace = write_json(
        tmp_path / "in" / "rank0.trace.json", kineto([Op(COMPUTE, 0, 60)], steps={1: (0, 100)})
    )
    secret = tmp_path / "other" / "secret"
    secret.write_text("hunter2")
    return trace, tmp_path / "out", secret


def run(script, places):
    environment = {**os.environ, "TMPDIR": str(places[1].parent / "temporary")}
    command = [sys.executable, "-c", ATTEMPTS + script, *map(str, places)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def check(found, allowed=frozenset({"read the trace", "write a report", "make a temporary file"})):
    capabilities = found.pop("capabilities")
    # Root keeps the rights to read and write files of users, where Landlock allows it.
    assert capabilities & ~0b110 == 0
    assert found.pop("no new privileges") == "1"
    assert {name for name, result in found.items() if result == "done"} == allowed
    assert {result for name, result in found.items() if name not in allowed} <= {"EACCES", "EPERM"}


def test_it_reads_its_traces_writes_its_report_and_nothing_else(places):
    check(json.loads(run(ALONE, places)))
    assert places[2].read_text() == "hunter2"


def test_a_parser_of_traces_that_was_taken_over_has_no_more_and_the_report_is_written(places):
    run(TAKEN_OVER, places)
    check(json.loads((places[1] / "found.json").read_text()))
    assert "<html" in (places[1] / "report.html").read_text()


def test_the_trace_of_a_module_is_read_without_rights_too(places):
    check(json.loads(run(MEASURED, places)), {"read the trace", "make a temporary file"})


def test_a_redaction_that_was_taken_over_has_its_file_and_the_copy_only(places):
    run(REDACTION, places)
    found = json.loads((places[1] / "copy").read_text())
    # `tempfile` raises ENOENT if it can write in no folder.
    assert found.pop("make a temporary file") == "ENOENT"
    check(found, allowed={"read the trace"})
    assert [file.name for file in places[1].iterdir()] == ["copy"]


@pytest.mark.parametrize("kind", ["kineto.kineto_tool", "jax.jax_tool", "nsys.nsys_tool"])
def test_a_check_of_a_trace_that_was_taken_over_has_that_file_only(places, kind):
    command = [sys.executable, "-c", ATTEMPTS + CHECKER, kind, *map(str, places)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(ended.stdout.lstrip("\0"))
    assert found.pop("make a temporary file") == "ENOENT"
    check(found, allowed={"read the trace"})
    assert list(places[1].iterdir()) == []


def _nsys(places, output):
    """An exploited nsys in its own folder, and a program outside its installation."""
    target = places[1].parent / "nsight" / "target-linux-x64"
    target.mkdir(parents=True)
    program = places[2].with_name("secret.sh")
    program.write_text("#!/bin/sh\nexit 0\n")
    nsys = target / "nsys"
    nsys.write_text(
        EXPORTER.format(python=sys.executable, attempts=ATTEMPTS, secret=places[2], output=output)
    )
    for file in (program, nsys):
        file.chmod(0o755)
    return nsys


EXPORTER_MAY = {"read the trace", "write a report", "make a temporary file", "run a program"}


def test_an_exporter_that_was_taken_over_in_a_capture_has_its_report_and_an_empty_folder_only(places):
    report = places[0].rename(places[1] / "rank0.nsys-rep")
    made = NsysCli(_nsys(places, "-o")).export(report)
    check(json.loads(made.read_text()), EXPORTER_MAY)
    assert sorted(file.name for file in places[1].iterdir()) == ["rank0.nsys-rep", "rank0.sqlite"]


def test_an_exporter_that_was_taken_over_in_a_report_has_no_more(places):
    report = places[0].rename(places[1] / "rank0.nsys-rep")
    with exported(report, str(_nsys(places, "--output"))) as made:
        check(json.loads(made.read_text()), EXPORTER_MAY)


@pytest.mark.parametrize("architecture", [0xC000003E, 0xC00000B7])
@pytest.mark.parametrize("programs", [True, False])
def test_the_filter_lets_a_process_start_programs_only_if_it_may_and_see_its_own_limits(
    architecture, programs
):
    machine = Machine(audit_architecture=architecture, allowed=[], denied=[41, 59], starting=[59], limits=302)
    program = deny_program(machine, programs=programs)
    assert outcome(program, architecture, 59) == (ALLOWED if programs else REFUSED)
    assert outcome(program, architecture, 41) == REFUSED
    assert outcome(program, architecture, 302, argument=0) == ALLOWED
    assert outcome(program, architecture, 302, argument=1) == REFUSED


@pytest.mark.parametrize("architecture", [0xC000003E, 0xC00000B7])
def test_the_filter_denies_the_listed_calls_in_every_numbering(architecture):
    calls = [59, 322, 41]
    program = deny_program(Machine(audit_architecture=architecture, allowed=[], denied=calls))
    for number in range(600):
        assert outcome(program, architecture, number) == (REFUSED if number in calls else ALLOWED)
    # The second table of x86_64 has the same calls with a bit set.
    assert outcome(program, architecture, 0x40000000 | 59) == REFUSED
    assert outcome(program, architecture ^ 1, 0) == KILLED
