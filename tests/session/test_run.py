"""`perfd run`, `perfd record` and `perfd replay` as a user calls them, around a fake training job."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from perfd.cli import main
from tests.support.nsys_installation import install

PERFD = [sys.executable, "-c", "import sys; from perfd.cli import main; sys.exit(main())"]
TRAINER = [sys.executable, str(Path(__file__).with_name("fake_trainer.py"))]
PATIENCE_S = 180.0
"""For what takes seconds."""


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "session.yaml"
    path.write_text("aggregator: {http_listen: '127.0.0.1:0'}\nagent: {capture: {enabled: false}}\n")
    return path


def command(tmp_path: Path, configuration: Path, *words: str, job: str = "train") -> list[str]:
    options = ["--config", str(configuration), "--job", job, "--out", str(tmp_path / "out")]
    return [*PERFD, "run", *options, *words]


def perfd(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PERFD, *words], capture_output=True, text=True, check=False, **options)


def results(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "out").iterdir()
    return folder


def only_job(tmp_path: Path) -> dict[str, object]:
    document = json.loads((results(tmp_path) / "summary.json").read_bytes())
    assert document["schema"] == "perfd.summary/2"
    (job,) = document["jobs"]
    return job


def until_exported(process: subprocess.Popen[str], *texts: str) -> str:
    """The first page of metrics of a run that has all the texts."""
    assert process.stderr is not None
    address = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+/", line)))
    page, began_s = "", time.monotonic()
    while not all(text in page for text in texts):
        assert time.monotonic() - began_s < PATIENCE_S, f"{texts} are never exported"
        time.sleep(0.05)
        with urllib.request.urlopen(f"{address}metrics") as response:
            page = response.read().decode()
    return page


def test_a_job_passes_through_and_its_summary_is_printed_and_saved(tmp_path, configuration):
    bare = subprocess.run([*TRAINER, "0", "0"], capture_output=True, text=True, check=True)
    done = subprocess.run(
        command(tmp_path, configuration, "--", *TRAINER, "30", "0.02"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith(bare.stdout)
    assert len(re.findall(r"iteration +\d+/", done.stdout)) == 30
    assert "rank 1: step 30 done\n" in done.stderr
    job = only_job(tmp_path)
    assert job["name"] == "train"
    assert job["steps"]["count"] == 30
    assert job["step_time_s"]["median"] == pytest.approx(0.02)
    assert job["parallel"]["pp"] == 2
    text = (results(tmp_path) / "summary.md").read_text()
    assert text in done.stderr
    assert "20.0 ms (median)" in text
    assert sorted(path.name for path in results(tmp_path).iterdir()) == [
        "history",
        "page.json.gz",
        "perfd.log",
        "summary.json",
        "summary.md",
    ]


@pytest.mark.slow
def test_what_was_recorded_of_a_run_gives_the_same_summary_again(tmp_path, configuration):
    recording = tmp_path / "recording"
    subprocess.run(
        command(tmp_path, configuration, "--record", str(recording), "--", *TRAINER, "40", "0.05"),
        capture_output=True,
        check=True,
    )
    replayed = perfd("replay", str(recording), "--speed", "max", "--json")
    assert replayed.returncode == 0
    assert json.loads(replayed.stdout)["jobs"] == [only_job(tmp_path)]
    assert replayed.stdout.count("\n") == 1
    manifest = json.loads((recording / "recording.json").read_bytes())
    assert manifest["name"] == "train"
    assert manifest["framework"]["name"] == "megatron-lm"
    assert {stream["kind"] for stream in manifest["streams"]} == {"training-log", "records"}


def test_a_job_that_crashes_keeps_its_exit_code_and_gets_its_summary(tmp_path, configuration):
    done = subprocess.run(
        command(tmp_path, configuration, "--", *TRAINER, "10", "0.01", "9"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9
    assert only_job(tmp_path)["steps"]["count"] == 10
    assert "The job ended with exit code 9." in done.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, 137), (signal.SIGINT, 130)]
)
def test_a_job_that_is_interrupted_gets_its_summary(tmp_path, configuration, number, code):
    trainer = [*TRAINER, "100000", "0.01"]
    if number == signal.SIGKILL:
        trainer = ["bash", "-c", f"{' '.join(TRAINER)} 20 0.01; kill -9 $$"]
    process = subprocess.Popen(
        command(tmp_path, configuration, "--", *trainer),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if re.search(r"iteration +20/", line):
            break
    if number != signal.SIGKILL:
        process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code
    assert only_job(tmp_path)["steps"]["count"] >= 20
    assert "step time" in err
    assert number != signal.SIGKILL or "The job ended with exit code 137, as after SIGKILL." in err
    assert number != signal.SIGTERM or "saving checkpoint\n" in out


def test_a_monitor_that_is_killed_leaves_the_job_alone(tmp_path, configuration):
    process = subprocess.Popen(
        command(tmp_path, configuration, "--", *TRAINER, "60", "0.02", "3"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (monitor,) = [
        pid for pid in children if "perfd.session.monitor" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(int(monitor), signal.SIGKILL)
    # `communicate` would pass over what was read together with the first line.
    with process:
        out, err = first + process.stdout.read(), process.stderr.read()
    assert process.returncode == 3
    assert len(re.findall(r"iteration +\d+/", out)) == 60
    assert "the monitor failed, so there is no summary; the job was not affected" in err


def test_a_perfd_that_is_killed_takes_its_job_with_it_and_still_saves_what_it_saw(tmp_path, configuration):
    process = subprocess.Popen(
        command(tmp_path, configuration, "--", *TRAINER, "100000", "0.01"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if re.search(r"iteration +50/", line):
            break
    process.kill()
    # The monitor holds standard error to its end, so that this returns when it has saved the summary.
    _, err = process.communicate()
    assert "perfd run was killed; this summary covers the time before." in err
    # What perfd run itself still held of the output is lost with it.
    assert only_job(tmp_path)["steps"]["count"] >= 40


def test_a_full_disk_for_what_perfd_says_before_the_job_does_not_keep_it_from_running(
    tmp_path, configuration
):
    rules = tmp_path / "rules.yaml"
    alert = {"alert": "A", "expr": "perfd_step > 0", "labels": {"capture": "unknown"}}
    rules.write_text(json.dumps({"groups": [{"name": "mine", "rules": [alert]}]}))
    words = ("--rules", str(rules), "--", "sh", "-c", "exit 3")
    said = subprocess.run(
        command(tmp_path, configuration, *words), capture_output=True, text=True, check=False
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command(tmp_path, configuration, *words), stderr=full, check=False)
    assert "unknown" in said.stderr.splitlines()[0]
    assert (said.returncode, done.returncode) == (3, 3)


def test_nobody_has_to_read_what_perfd_says(tmp_path, configuration):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    code = "import time; time.sleep(1)"
    done = subprocess.run(
        command(tmp_path, configuration, "--", sys.executable, "-c", code), stderr=write_fd, check=False
    )
    os.close(write_fd)
    assert done.returncode == 0
    assert (results(tmp_path) / "summary.json").exists()


def test_metrics_are_served_while_the_job_runs(tmp_path, configuration):
    process = subprocess.Popen(
        command(tmp_path, configuration, "--", *TRAINER, "100000", "0.02"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    page = until_exported(process, "perfd_step_time_seconds")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert re.search(r'perfd_step_time_seconds\{.*job="train".*\} 0\.02', page)


@pytest.fixture
def taken():
    """An address on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
def test_a_usual_port_that_is_taken_does_not_keep_the_job_from_running(tmp_path, configuration, taken):
    configuration.write_text(
        f"aggregator: {{http_listen: '{taken}'}}\nagent: {{capture: {{enabled: false}}}}\n"
    )
    inner = command(tmp_path, configuration, "--", *TRAINER, "3", "0.01")
    done = subprocess.run(inner, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert f"{taken} is taken" in done.stderr
    assert only_job(tmp_path)["steps"]["count"] == 3


def test_nothing_is_started_when_the_requested_address_is_taken(tmp_path, configuration, taken):
    words = ("--http", taken, "--", "touch", str(tmp_path / "started"))
    done = subprocess.run(
        command(tmp_path, configuration, *words), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"Cannot listen on {taken}: Address already in use." in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_command_that_is_no_training_job_is_said_to_be_none(tmp_path, configuration):
    done = subprocess.run(
        command(tmp_path, configuration, "--", "echo", "hello"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert (results(tmp_path) / "summary.json").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_costs_the_files_and_nothing_else(tmp_path, configuration):
    (tmp_path / "out").write_text("a file where the folder should be")
    done = subprocess.run(
        command(tmp_path, configuration, "--", *TRAINER, "3", "0.01"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "perfd: results not saved" in done.stderr
    assert "step time" in done.stderr


def test_nothing_is_started_when_the_configuration_is_wrong(tmp_path, configuration):
    configuration.write_text("agent: {collektors: {}}\n")
    done = subprocess.run(
        command(tmp_path, configuration, "--", "touch", str(tmp_path / "started")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "collektors" in done.stderr
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "out").exists()


def test_nothing_is_started_when_the_address_is_none(tmp_path, configuration):
    words = ("--http", "nonsense", "--", "touch", str(tmp_path / "started"))
    done = subprocess.run(
        command(tmp_path, configuration, *words), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'nonsense' is not an address; write it as host:port" in done.stderr
    assert not (tmp_path / "started").exists()


def test_nothing_is_started_when_there_is_no_command_or_it_cannot_be_found(tmp_path, configuration):
    assert "There is no command to run" in perfd("run", "--config", str(configuration)).stderr
    done = subprocess.run(
        command(tmp_path, configuration, "--", "no-such-command"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (127, "perfd run: no-such-command: command not found.\n")
    assert not (tmp_path / "out").exists()


def test_nothing_is_started_when_the_recording_would_overwrite_one(tmp_path, configuration):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/recording.json").touch()
    words = ("--record", str(tmp_path / "old"), "--", "touch", str(tmp_path / "started"))
    done = subprocess.run(
        command(tmp_path, configuration, *words), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "a recording needs a new folder" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
def test_record_with_a_command_writes_a_recording_of_it(tmp_path, configuration):
    words = ("record", "--config", str(configuration), "--job", "t", "--out", str(tmp_path / "rec"), "--")
    done = perfd(*words, *TRAINER, "20", "0.01", cwd=tmp_path)
    assert done.returncode == 0
    replayed = perfd("replay", str(tmp_path / "rec"), "--speed", "max")
    assert replayed.returncode == 0
    assert "20 lines, steps 1 to 20" in replayed.stdout


@pytest.mark.slow
def test_record_without_a_command_writes_what_the_agent_sees(tmp_path):
    config = tmp_path / "agent.yaml"
    log = tmp_path / "train.log"
    log.write_text(
        subprocess.run([*TRAINER, "12", "0.001"], capture_output=True, text=True, check=True).stdout
    )
    config.write_text(f"collectors: {{training_log: {{options: {{paths: ['{log}']}}}}}}\n")
    words = ("record", "--config", str(config), "--out", str(tmp_path / "rec"), "--duration", "0.1")
    done = perfd(*words, "--job", "followed")
    assert done.returncode == 0, done.stderr
    replayed = perfd("replay", str(tmp_path / "rec"), "--speed", "max", "--json")
    (job,) = json.loads(replayed.stdout)["jobs"]
    assert (job["name"], job["steps"]["count"]) == ("followed", 12)


def test_replay_says_in_words_what_it_shows_in_json(capsys):
    assert main(["replay", "pp4_few", "--speed", "max"]) == 0
    said = capsys.readouterr().out
    assert "The pipeline bubble limits this job" in said
    assert "For the next run: Use more micro-batches" in said
    assert "PerfdPipelineStall at step" in said
    assert "34.9 of 35.0 s" in said or "35.0 of 35.0 s" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "neither a recording's folder nor the name of a bundled one"),
        (["/nowhere/at/all"], "/nowhere/at/all does not exist"),
        (["pp4_few", "--speed", "0"], "neither a positive number nor max"),
        (["pp4_few", "--speed", "fast"], "neither a positive number nor max"),
        (["pp4_few", "--rules", "/nowhere.yaml"], "/nowhere.yaml"),
        (["pp4_few", "--rules", "/nowhere.yaml", "--rules", "/dev/null"], "/nowhere.yaml"),
        (["pp4_few", "--config", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_what_replay_cannot_do_is_one_sentence_and_exit_code_2(words, said, capsys):
    try:
        code = main(["replay", "--json", *words])
    except SystemExit as refused:  # of argparse
        code = refused.code
    assert code == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert "Traceback" not in shown.err


@pytest.mark.slow
def test_an_alert_while_a_job_runs_puts_a_report_among_its_results(tmp_path, configuration):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "groups: [{name: g, rules: [{alert: Slow, expr: perfd_step_time_seconds > 0.001,"
        " labels: {capture: default}, annotations: {summary: slow}}]}]"
    )
    nsys = install(tmp_path / "nsys")
    configuration.write_text(
        f"agent: {{capture: {{nsys_path: '{nsys}', min_free_bytes: 0}}}}\n"
        "aggregator:\n  http_listen: '127.0.0.1:0'\n"
        f"  rules: {{builtin: false, files: ['{rules}'], interval_s: 1}}\n"
    )
    process = subprocess.Popen(
        command(tmp_path, configuration, "--", *TRAINER, "100000", "0.02"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    )
    assert process.stderr is not None
    lines = iter(process.stderr)
    assert "The job runs in the nsys session perfd.train." in next(lines)
    for _ in lines:
        # The trainer prints a line a step, so that this looks again and again.
        if list((tmp_path / "out").glob("*/captures/**/*.nsys-rep")):
            break
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 0
    (alert,) = only_job(tmp_path)["alerts"]
    assert alert["name"] == "Slow"
    assert len(alert["captures"]) == 1
    assert "Slow at step" in err


def test_a_rule_of_the_command_line_fires_beside_those_of_the_configuration(tmp_path, configuration):
    for name in ("Configured", "First", "Second"):
        (tmp_path / f"{name}.yaml").write_text(
            f"groups: [{{name: {name}, rules: [{{alert: {name}, expr: perfd_step_time_seconds > 0.001}}]}}]"
        )
    configuration.write_text(
        "aggregator:\n  http_listen: '127.0.0.1:0'\n"
        "  rules: {builtin: false, files: [Configured.yaml], interval_s: 0.1}\n"
        "agent: {capture: {enabled: false}}\n"
    )
    rules = ["--rules", "First.yaml", "--rules", "Second.yaml"]
    process = subprocess.Popen(
        command(tmp_path, configuration, *rules, "--", *TRAINER, "100000", "0.02"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        # However slow the machine is, the job runs as long as the slowest of the rules takes.
        until_exported(process, *(f'alertname="{name}"' for name in ("Configured", "First", "Second")))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 0
    alerts = only_job(tmp_path)["alerts"]
    assert sorted(alert["name"] for alert in alerts) == ["Configured", "First", "Second"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "wrong.yaml"),
        ("groups: [{name: a, rules: [{alert: B, expr: 'up >'}]}]", "wrong.yaml:1:"),
    ],
)
@pytest.mark.parametrize("where", ["option", "configuration"])
def test_a_wrong_rules_file_is_reported_before_the_job_starts(tmp_path, configuration, text, said, where):
    wrong = tmp_path / "wrong.yaml"
    if text is not None:
        wrong.write_text(text)
    if where == "configuration":
        configuration.write_text(f"aggregator: {{rules: {{files: ['{wrong}']}}}}\n")
    rules = ["--rules", str(wrong)] if where == "option" else []
    done = perfd(
        *command(tmp_path, configuration, *rules, "--", "touch", str(tmp_path / "started"))[len(PERFD) :]
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "out").exists()


@pytest.fixture
def sockets():
    """A folder whose name is short enough for sockets in it."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.slow
def test_a_job_for_kineto_gets_its_variables_and_runs_without_nsys(tmp_path, configuration, sockets):
    nsys = install(tmp_path / "nsys")
    configuration.write_text(
        f"agent: {{capture: {{nsys_path: '{nsys}', kineto: {{socket_directory: '{sockets}'}}}}}}\n"
        "aggregator: {http_listen: null}\n"
    )
    report = "import os; print(os.environ['KINETO_USE_DAEMON'], 'NSYS_PROFILING_SESSION_ID' in os.environ)"
    words = command(tmp_path, configuration, "--kineto", "--", sys.executable, "-c", report)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 False\n"), done.stderr
    assert "ready for captures (perfd capture start" in done.stderr
    refused = perfd("run", "--kineto", "--no-nsys", "--", "true")
    assert refused.returncode == 2
    assert "not allowed with" in refused.stderr


def test_no_capture_is_promised_where_something_else_answers_libkineto(tmp_path, configuration, sockets):
    configuration.write_text(
        f"agent: {{capture: {{kineto: {{socket_directory: '{sockets}'}}}}}}\n"
        "aggregator: {http_listen: null}\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dynolog:
        dynolog.bind(str(sockets / "dynolog"))
        words = command(tmp_path, configuration, "--kineto", "--", "true")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "ready for captures" not in done.stderr
    assert f"cannot capture. Another program answers libkineto at {sockets} " in done.stderr


def test_a_training_loop_with_the_hook_finds_the_agent_of_its_own_run(tmp_path, configuration):
    last = tmp_path / "last"
    trainer = [sys.executable, str(Path(__file__).with_name("hooked_trainer.py")), str(last)]
    with subprocess.Popen(
        command(tmp_path, configuration, "--", *trainer),
        env={name: value for name, value in os.environ.items() if name != "PERFD_HOOK_SOCKET"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until_exported(process, "perfd_step_time_seconds")
        last.touch()
        out, _ = process.communicate()

    assert process.returncode == 0
    (reported,) = re.findall(r"^socket (.+)$", out, re.MULTILINE)
    assert re.search(rf"perfd-hook-{os.getuid()}-\d+\.sock$", reported)
    assert not Path(reported).exists()
    assert f"on {socket.gethostname()}\n" in out
    job = only_job(tmp_path)
    assert job["steps"]["count"] > 0
    assert job["step_time_s"]["median"] >= 0.01
    assert job["breakdown"]["forward_ratio"] is None or job["breakdown"]["forward_ratio"] > 0.5


@pytest.mark.slow
def test_a_socket_that_the_user_named_for_the_hook_stays(tmp_path, configuration):
    mine = str(tmp_path / "mine.sock")
    done = subprocess.run(
        command(tmp_path, configuration, "--", "sh", "-c", "echo socket $PERFD_HOOK_SOCKET"),
        env={**os.environ, "PERFD_HOOK_SOCKET": mine},
        capture_output=True,
        text=True,
        check=False,
    )

    assert f"socket {mine}\n" in done.stdout
