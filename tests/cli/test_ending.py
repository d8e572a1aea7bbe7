"""How the command ends when its output goes nowhere, and when a signal ends it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

_PERFD = [sys.executable, "-c", "import sys; from perfd.cli import main; sys.exit(main())"]
_BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""As users have it: what cannot be written is noticed at the end."""
_TRACES = str(Path(__file__).parents[2] / "docs" / "examples" / "slow-rank")

# The process asks for the signal inside the lock of the event that it waits for, where a handler that sets
# the event would wait for itself for ever.
_INSIDE_THE_LOCK = """
import os, signal
from perfd.cli.signals import set_by_signals

told = set_by_signals(signal.SIGTERM, signal.SIGINT)
with told._cond:
    os.kill(os.getpid(), signal.SIGTERM)
told.wait()
print("ended")
"""


# The kernel may give a signal to any thread; the main thread waits, so that Python runs no handler in it.
_GIVEN_TO_ANOTHER_THREAD = """
import signal, threading
from perfd.cli.signals import set_by_signals

told = set_by_signals(signal.SIGTERM, signal.SIGINT)

def other():
    while not told._cond._waiters:
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Event().wait()

threading.Thread(target=other, daemon=True).start()
told.wait()
print("ended")
"""


@pytest.mark.parametrize(
    "verb",
    [
        ["version"],
        ["version", "--help"],
        ["rules", "check"],
        ["rules", "check", "--json"],
        # Traces are read without the right to open other files.
        ["trace", "table", "kernels", _TRACES],
    ],
)
def test_a_full_disk_is_one_sentence_and_exit_code_2(verb):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*_PERFD, *verb], stdout=full, stderr=subprocess.PIPE, text=True, env=_BUFFERED, check=False
        )

    assert (done.returncode, done.stderr) == (2, f"perfd {verb[0]}: No space left on device.\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nonsense"], 2),
        (["version", "--nonsense"], 2),
        (["diagnose", "/no/such/path"], 2),
        (["run", "--http", "127.0.0.1:0", "--out", "{folder}", "--", "sh", "-c", "exit 3"], 3),
    ],
)
def test_a_full_disk_under_standard_error_does_not_change_the_exit_code(tmp_path, words, code):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*_PERFD, *(word.format(folder=tmp_path) for word in words)],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            env=_BUFFERED,
            check=False,
        )

    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize("verb", [["version"], ["--help"], ["compare", _TRACES, _TRACES]])
def test_a_reader_that_left_is_no_error_and_no_regression(verb):
    with subprocess.Popen(
        [*_PERFD, *verb], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_BUFFERED
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        assert process.wait() == 141
        assert process.stderr.read() == b""


def test_without_any_output_the_verb_does_its_work():
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *_PERFD, "version"], stderr=subprocess.PIPE, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")


def test_errors_do_not_go_to_standard_output_when_standard_error_is_closed():
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *_PERFD, "diagnose", "/no/such/path"],
        stdout=subprocess.PIPE,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, b"")


def test_a_closed_standard_input_is_an_empty_log():
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *_PERFD, "parse", "-"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "The log is empty" in done.stdout


def test_a_table_for_closed_output_is_no_error():
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *_PERFD, "trace", "table", "kernels", "--csv", _TRACES],
        stderr=subprocess.PIPE,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")


def test_characters_that_the_encoding_lacks_are_escaped():
    script = (
        "import sys; from perfd import cli\n"
        "cli._module('version').run = lambda args: print('12 \\xb5s \\u2192 \\U0001f680') or 0\n"
        "sys.exit(cli.main())"
    )
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", script, "version"], env=ascii_only, capture_output=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == rb"12 us \u2192 \ud83d\ude80" + b"\n"


def test_a_file_name_that_json_cannot_hold_is_one_sentence(tmp_path):
    trace = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.json.gz"))
    trace.write_bytes(next(Path(_TRACES).glob("*.json.gz")).read_bytes())
    done = subprocess.run(
        [*_PERFD, "analyze", "--json", str(trace)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("is not valid UTF-8. If it is the name of a file, rename the file.\n")
    assert "Traceback" not in done.stderr


def test_a_named_pipe_is_refused_as_a_trace(tmp_path):
    pipe = tmp_path / "rank-0.json"
    os.mkfifo(pipe)
    done = subprocess.run(
        [*_PERFD, "analyze", str(tmp_path)], capture_output=True, text=True, check=False, timeout=50
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "write the trace to a file first" in done.stderr


def test_running_out_of_memory_is_one_sentence():
    starved = (
        "import sys; from perfd import cli\n"
        "def run(args): raise MemoryError\n"
        "cli._module('version').run = run\n"
        "sys.exit(cli.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", starved, "version"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "perfd version: Out of memory. Try fewer files at once, or a machine with more memory.\n"
    )


@pytest.mark.parametrize("asked", [None, "1"])
def test_an_unexpected_error_is_a_sentence_and_no_answer_of_the_verb(asked):
    broken = (
        "import sys; from perfd import cli\n"
        "cli._module('compare').run = lambda args: {}['jobs']\n"
        "sys.exit(cli.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", broken, "compare", "a", "b"],
        env={**os.environ} if asked is None else {**os.environ, "PERFD_TRACEBACK": asked},
        capture_output=True,
        text=True,
        check=False,
    )

    # 1 would say that the second run is worse.
    assert (done.returncode, done.stdout) == (2, "")
    assert ("Traceback" in done.stderr) == (asked is not None)
    *_, last = done.stderr.splitlines()
    assert re.fullmatch(
        r"perfd compare: Unexpected error at perfd/cli/__init__\.py:\d+ \(KeyError: 'jobs'\)\. "
        r"Please report it with the traceback that PERFD_TRACEBACK=1 prints\.",
        last,
    )


def test_a_command_runs_where_nothing_can_be_written(tmp_path):
    command = [
        *_PERFD,
        "run",
        "--http",
        "127.0.0.1:0",
        "--out",
        str(tmp_path),
        "--",
        "sh",
        "-c",
        "echo ran; exit 7",
    ]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *command], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (7, "ran\n")
    assert "Traceback" not in done.stderr


def test_a_command_is_not_started_where_no_thread_could_pass_on_its_output(tmp_path):
    limited = (
        "import sys, threading; from perfd import cli\n"
        'def start(thread): raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = start\n"
        "sys.exit(cli.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "run", "--out", str(tmp_path), "--", "touch", str(tmp_path / "ran")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("Raise ulimit -v or ulimit -u.\n")
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_replay_that_is_ended_leaves_no_temporary_files(tmp_path, number):
    with subprocess.Popen(
        [*_PERFD, "replay", "pp4_few", "--speed", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert "35.0 s" in process.stdout.readline()
        assert any(tmp_path.iterdir())
        process.send_signal(number)

        assert "Traceback" not in process.stdout.read()
        assert process.wait() == 128 + number
    assert not any(tmp_path.iterdir())


def test_ctrl_c_while_modules_are_still_loaded_is_no_traceback():
    interrupted = (
        "import signal, sys; from perfd import cli\n"
        "cli._module = lambda verb: signal.raise_signal(signal.SIGINT)\n"
        "sys.exit(cli.main(['version']))"
    )
    done = subprocess.run([sys.executable, "-c", interrupted], stderr=subprocess.PIPE, check=False)

    assert (done.returncode, done.stderr) == (130, b"")


@pytest.mark.parametrize(("ignored", "ending"), [(False, signal.SIGHUP), (True, signal.SIGTERM)])
def test_an_agent_whose_terminal_goes_away_ends_in_order_unless_under_nohup(tmp_path, ignored, ending):
    command = [*_PERFD, "agent", "--aggregator", "127.0.0.1:1", "--node", "a"]
    with subprocess.Popen(
        ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *command] if ignored else command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
    ) as process:
        assert process.stderr is not None
        assert any("batches wait in the spool" in line for line in process.stderr)
        process.send_signal(signal.SIGHUP)
        process.send_signal(ending)

        assert process.wait() == 0
    assert [left.name for left in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_class_is_made_ends_the_verb_as_any_other(number):
    interrupted = (
        "import signal, sys; from perfd import cli\n"
        "class Field:\n"
        "    def __set_name__(self, owner, name):\n"
        f"        signal.raise_signal({int(number)})\n"
        "cli._module('version').run = lambda args: type('Class', (), {'field': Field()})\n"
        "sys.exit(cli.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", interrupted, "version"], stderr=subprocess.PIPE, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (128 + number, "")


@pytest.mark.parametrize("script", [_INSIDE_THE_LOCK, _GIVEN_TO_ANOTHER_THREAD], ids=["the lock", "a thread"])
def test_a_signal_ends_the_wait_wherever_it_comes(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=50
    )

    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_a_second_ctrl_c_does_not_wait_for_an_exporter_that_hangs(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        config = tmp_path / "aggregator.yaml"
        config.write_text(
            "listen: 127.0.0.1:0\nhttp_listen: null\n"
            f"exporters: {{remote_write: {{url: '{url}', http: {{timeout_s: 100.0}}}}}}\n"
        )
        with subprocess.Popen(
            [*_PERFD, "aggregator", "--config", str(config)], stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            # Its first request, which nobody will answer.
            waiting, _ = silent.accept()
            with waiting:
                process.send_signal(signal.SIGINT)
                assert any("The aggregator stops." in line for line in process.stderr)
                process.send_signal(signal.SIGINT)

                assert process.wait() == -signal.SIGINT


# The signal comes with the first import after the entry point's own lines, as an early Ctrl-C does.
_EARLY = """
import builtins, os, signal
real = builtins.__import__

def importing(name, *rest):
    if name == "perfd.cli":
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *rest)

signal.signal(signal.SIGINT, {handler})
builtins.__import__ = importing
import perfd.__main__
print("went on")
"""


def test_an_early_ctrl_c_ends_the_command_without_a_traceback():
    code = _EARLY.format(handler="signal.default_int_handler")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_ctrl_c_that_the_caller_ignores_stays_ignored():
    code = _EARLY.format(handler="signal.SIG_IGN")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")
