"""The relay in front of a training container's command: output, rotation, signals, exit status."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "deploy" / "image" / "relay" / "relay.c"
PRINTER = "import sys\nfor i in range(int(sys.argv[1])): print(f'line {i} ' + 'x' * 40)"
Relay = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("relay") / "perfd-relay"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-static"]
    subprocess.run(["gcc", *flags, "-o", path, SOURCE], check=True)
    return path


@pytest.fixture
def relay(binary: Path, tmp_path: Path) -> Relay:
    """Starts a command below the relay, with its files in the test's folder."""

    def start(*command: str, options: tuple[str, ...] = (), **popen: object) -> subprocess.Popen[bytes]:
        files = ["--log", str(tmp_path / "log"), "--end", str(tmp_path / "end")]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | popen
        return subprocess.Popen([binary, *files, *options, "--", *command], **streams)  # type: ignore[call-overload,no-any-return]

    return start


def kept(folder: Path) -> bytes:
    older = folder / "log.1"
    return (older.read_bytes() if older.exists() else b"") + (folder / "log").read_bytes()


@pytest.mark.parametrize("count", [0, 1, 100_000])
def test_every_line_reaches_both_readers_however_soon_the_command_ends(
    relay: Relay, tmp_path: Path, count: int
) -> None:
    process = relay(sys.executable, "-c", PRINTER, str(count))
    out, err = process.communicate()
    assert process.returncode == 0
    assert out.count(b"\n") == count
    assert (kept(tmp_path), err) == (out, b"")


def test_both_streams_stay_apart_and_are_in_the_log(relay: Relay, tmp_path: Path) -> None:
    process = relay("sh", "-c", "printf 'no end'; printf 'bad\\0\\n' >&2")
    assert process.communicate() == (b"no end", b"bad\0\n")
    assert sorted(kept(tmp_path)) == sorted(b"no endbad\0\n")


def test_the_log_is_rotated_at_the_end_of_a_line_and_bounded(relay: Relay, tmp_path: Path) -> None:
    process = relay(sys.executable, "-c", PRINTER, "2000", options=("--max-bytes", "10000"))
    out, _ = process.communicate()
    for name in ("log", "log.1"):
        content = (tmp_path / name).read_bytes()
        assert len(content) <= 10_000
        assert content.endswith(b"\n")
    assert out.endswith(kept(tmp_path))
    assert kept(tmp_path).startswith(b"line ")


def test_a_line_without_an_end_cannot_fill_the_disk(relay: Relay, tmp_path: Path) -> None:
    process = relay("head", "-c", "1000000", "/dev/zero", options=("--max-bytes", "10000"))
    out, _ = process.communicate()
    assert len(out) == 1_000_000
    assert len(kept(tmp_path)) <= 4 * 64 * 1024


@pytest.mark.parametrize("code", [0, 1, 127, 255])
def test_the_exit_code_is_the_commands(relay: Relay, tmp_path: Path, code: int) -> None:
    process = relay("sh", "-c", f"exit {code}")
    process.communicate()
    assert process.returncode == code
    assert (tmp_path / "end").read_text() == f"exit_code={code}\n"


def test_a_signal_that_ends_the_command_ends_the_relay(relay: Relay, tmp_path: Path) -> None:
    process = relay("sh", "-c", "kill -SEGV $$")
    process.communicate()
    assert process.returncode == -signal.SIGSEGV
    assert (tmp_path / "end").read_text() == "exit_code=139\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on(relay: Relay, number: signal.Signals) -> None:
    script = "trap 'echo got; exit 3' TERM INT USR1; echo ready; while :; do sleep 0.05; done"
    process = relay("sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.communicate()[0] == b"got\n"
    assert process.returncode == 3


def test_a_killed_relay_takes_the_command_with_it(relay: Relay) -> None:
    process = relay("sh", "-c", "echo $$; exec sleep 600")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    deadline_s = time.monotonic() + 60
    while (
        Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]
    ):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_command_that_cannot_run_is_named(relay: Relay, tmp_path: Path) -> None:
    process = relay("/nowhere/train")
    _, err = process.communicate()
    assert err == b"perfd-relay: /nowhere/train: No such file or directory\n"
    assert process.returncode == 127
    assert (tmp_path / "end").read_text() == "exit_code=127\n"


def test_a_log_that_cannot_be_written_costs_the_command_nothing(relay: Relay, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    process = relay(sys.executable, "-c", PRINTER, "1000")
    assert process.communicate()[0].count(b"\n") == 1000
    assert process.returncode == 0


def test_a_full_disk_costs_the_log_only(binary: Path, tmp_path: Path) -> None:
    command = f'ulimit -f 8; exec {binary} --log {tmp_path}/log -- {sys.executable} -c "$PRINTER" 5000'
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, env={**os.environ, "PRINTER": PRINTER}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 5000
    assert 0 < (tmp_path / "log").stat().st_size <= 8192


def test_a_link_in_place_of_the_log_is_not_followed(relay: Relay, tmp_path: Path) -> None:
    target = tmp_path / "of another user"
    target.write_text("keep")
    (tmp_path / "log").symlink_to(target)
    assert relay("echo", "hello").communicate()[0] == b"hello\n"
    assert target.read_text() == "keep"


def test_a_process_that_outlives_the_command_does_not_hold_its_end(relay: Relay) -> None:
    process = relay("sh", "-c", "sleep 600 & echo $!; exit 4")
    out, _ = process.communicate(timeout=120)
    os.kill(int(out), signal.SIGKILL)
    assert process.returncode == 4


def test_a_reader_that_goes_away_ends_the_command_as_without_a_relay(relay: Relay) -> None:
    process = relay("yes")
    assert process.stdout is not None
    process.stdout.close()
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGPIPE


@pytest.mark.parametrize(
    "arguments", [[], ["--log"], ["--log", "x"], ["--log", "x", "--"], ["--lag", "x", "--", "a"]]
)
def test_wrong_arguments_are_refused_with_the_usage(binary: Path, arguments: list[str]) -> None:
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert "usage: perfd-relay --log FILE" in done.stderr
