"""What nsys prints, what it is started with, and what processes say about themselves."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.capture.node.process_environment import (
    parse_environ,
    rank_of,
    runs,
    scan_nsys_processes,
)
from perfd.capture.nsys.nsys_cli import NsysCli, parse_generated, parse_sessions, session_name, session_prefix
from perfd.capture.nsys.nsys_installation import find_nsys, inspect
from perfd.capture.nsys.nsys_launch import plan_launch
from perfd.capture.selection.capture_id import check_capture_id, slug
from perfd.config import AgentCaptureConfig
from perfd.errors import CaptureError
from tests.support import nsys_installation
from tests.support.fake_node import process_stat

NEEDS_CC = pytest.mark.skipif(shutil.which("cc") is None, reason="a CUPTI is built: apt-get install gcc")
SESSIONS = """\
              ID         TIME                       STATE LAUNCH NAME
         1010093        00:03                    Launched      1 perfd.llama.7
         1110259        00:00                     Started      0 a name with spaces
"""
STOPPED = (
    "Generating '/tmp/nsys-report-9438.qdstrm'\n"
    "[1/1] [0%                          ] rep.nsys-rep\r[1/1] [====100%] rep.nsys-rep\n"
    "Generated:\n    /captures/c1/rep.nsys-rep\n\t/captures/c1/rep.sqlite\nbye\n    /not/this\n"
)


def test_the_table_of_sessions_is_read_by_its_header():
    first, second = parse_sessions(SESSIONS)
    assert (first.id, first.state, first.launches, first.name) == ("1010093", "Launched", 1, "perfd.llama.7")
    assert (second.launches, second.name) == (0, "a name with spaces")


def test_the_list_of_generated_files_ends_where_it_ends():
    assert [str(path) for path in parse_generated(STOPPED)] == [
        "/captures/c1/rep.nsys-rep",
        "/captures/c1/rep.sqlite",
    ]


@given(st.text(max_size=200))
def test_any_output_is_read_without_an_error(text):
    parse_sessions(text)
    parse_sessions(SESSIONS + text)
    assert parse_generated(text.replace("Generated:", "")) == []


@given(st.integers(0, len(SESSIONS)))
def test_a_cut_table_never_invents_a_session(cut):
    whole = {session.id for session in parse_sessions(SESSIONS)}
    assert {session.id for session in parse_sessions(SESSIONS[:cut])} <= whole


@given(st.text(max_size=200), st.text(max_size=20))
def test_a_session_name_is_safe_and_of_one_job_only(job, unique):
    name = session_name(job, unique)
    assert name.startswith(session_prefix(job))
    assert name[0].isalpha()
    assert len(name) <= 127 + len("perfd..")
    assert all(character.isalnum() or character in "._-" for character in name)
    assert not session_name(f"{job}x"[:60], unique).startswith(session_prefix(job)) or slug(job) == slug(
        f"{job}x"[:60]
    )


@given(st.text(max_size=120))
def test_an_id_is_a_plain_name_or_refused(text):
    try:
        name = check_capture_id(text)
    except CaptureError:
        return
    assert "/" not in name
    assert ".." not in name
    assert not name.startswith(("-", "."))


@given(st.binary(max_size=200))
def test_any_environment_is_read_without_an_error(content):
    for name, value in parse_environ(content).items():
        assert f"{name}={value}".encode(errors="surrogateescape") in content


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"RANK": "3", "SLURM_PROCID": "0"}, 3),
        ({"SLURM_PROCID": "5"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
        # What `prterun` of PRRTE sets, and Open MPI's runtime beside its own.
        ({"PMIX_RANK": "1"}, 1),
        ({"RANK": "three"}, None),
        ({"RANK": "-1"}, None),
        ({}, None),
    ],
)
def test_a_rank_comes_from_the_launchers_variables(environment, rank):
    assert rank_of(environment) == rank


def test_only_processes_in_a_session_are_scanned(tmp_path):
    for pid, content in (("1", b"A=1\0"), ("2", b"NSYS_PROFILING_SESSION_ID=77\0RANK=1\0"), ("self", b"")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").write_bytes(content)
    (tmp_path / "3").mkdir()
    scan = scan_nsys_processes(tmp_path)
    assert scan.environments == {2: {"NSYS_PROFILING_SESSION_ID": "77", "RANK": "1"}}
    assert scan.unreadable == 0


@pytest.mark.parametrize(("state", "alive"), [("S", True), ("Z", False), ("X", False), (None, False)])
def test_a_zombie_does_not_run(tmp_path, state, alive):
    if state is not None:
        (tmp_path / "2").mkdir()
        stat = process_stat(2, "a) b", 1, 1000).replace(") S 1", f") {state} 1")
        (tmp_path / "2" / "stat").write_text(stat)
    assert runs(tmp_path, 2) is alive


def plan(installation, **config):
    return plan_launch(
        ["python", "train.py"],
        job="llama",
        unique="7",
        config=AgentCaptureConfig(**config),
        installation=installation,
    )


def test_a_job_is_started_under_nsys_launch_which_collects_nothing_yet(tmp_path):
    executable = nsys_installation.install(tmp_path)
    launch = plan(inspect(executable))
    assert launch.session == "perfd.llama.7"
    assert list(launch.command) == [
        str(executable),
        "launch",
        "--session-new=perfd.llama.7",
        "--trace=cuda,nvtx",
        "python",
        "train.py",
    ]
    assert "--no-nsys" in launch.note


def test_a_job_is_started_bare_where_nsys_cannot_help_and_the_note_says_why(tmp_path):
    working = inspect(nsys_installation.install(tmp_path / "a"))
    broken = inspect(nsys_installation.install(tmp_path / "b", importer=False))
    for launch, words in (
        (plan(None), "nsys not found"),
        (plan(working, launch=False), "are off"),
        (plan(working, enabled=False), "are off"),
        (plan(broken), "would leave no report"),
    ):
        assert (list(launch.command), launch.session) == (["python", "train.py"], None)
        assert words in launch.note


@NEEDS_CC
def test_an_nsys_whose_cupti_has_crashed_jobs_is_used_only_where_it_is_named(tmp_path):
    systems = tmp_path / "opt" / "nvidia" / "nsight-systems"
    risky = nsys_installation.install(systems / "2025.3.1", cupti_version=130000)
    found, named = (find_nsys(path, "", root=tmp_path) for path in (None, str(risky)))
    assert found.nsys == named.nsys == risky
    assert "set capture.nsys_path" in plan(found).note
    assert plan(found).session is None
    assert plan(named).session == "perfd.llama.7"
    older = nsys_installation.install(systems / "2024.7.1")
    assert find_nsys(None, str(risky.parent), root=tmp_path).nsys == older
    fixed = nsys_installation.install(
        tmp_path / "opt/nvidia/nsight-compute/2025.3.2/host", cupti_version=130001
    )
    assert find_nsys(None, str(fixed.parent), root=tmp_path).nsys == fixed


def test_a_cupti_that_cannot_be_loaded_keeps_no_nsys_from_use(tmp_path):
    nsys_installation.install(tmp_path / "opt/nvidia/nsight-systems/2025.5.1")
    (tmp_path / "opt/nvidia/nsight-systems/2025.5.1/target-linux-x64/libcupti.so.13.0").write_text(
        "no library"
    )
    found = find_nsys(None, "", root=tmp_path)
    assert (found.cupti_version, found.refusal) == (None, None)


def test_an_nsys_that_cannot_run_or_never_ends_is_one_clear_sentence(tmp_path):
    with pytest.raises(CaptureError, match="Cannot run"):
        NsysCli(tmp_path / "nosuch").sessions()
    hanging = tmp_path / "nsys"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    with pytest.raises(CaptureError, match=r"nsys stop did not end within 0 s"):
        NsysCli(hanging).run(["stop"], timeout_s=0.05)


def test_the_stand_in_behaves_as_the_state_table_says(node):
    job = node.launch()
    cli, name = node.cli, "perfd.llama.1"
    assert cli.run(["launch", f"--session-new={name}", "true"]).code == 1
    assert cli.run(["stop", f"--session={name}"]).code == 1
    for verb in ("stop", "status", "shutdown"):
        assert cli.run([verb, "--session=unknown"]).code == 1
    assert cli.run(["start", "--session=unknown"]).code == 0
    assert (cli.session("unknown").state, cli.session("unknown").launches) == ("Started", 0)
    assert cli.quiet("unknown") == []
    assert cli.session("unknown") is None
    output = node.directory / "report"
    assert cli.run(["start", f"--session={name}", "-o", str(output)]).code == 0
    assert cli.run(["start", f"--session={name}", "-o", str(output)]).code == 1
    assert cli.run(["cancel", f"--session={name}"]).code == 1
    assert parse_generated(cli.stop(name).output) == [output.with_suffix(".nsys-rep")]
    cli.run(["start", f"--session={name}", "-o", str(output)])
    (elsewhere,) = parse_generated(cli.stop(name).output)
    assert elsewhere.parent != output.parent, "an existing file sends the report elsewhere, with code 0"
    elsewhere.unlink()
    assert cli.run(["shutdown", "--kill=none", f"--session={name}"]).code == 0
    assert cli.session(name).state == "Shutdown"
    assert job.poll() is None


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)])
def test_the_exit_code_of_launch_is_that_of_the_job(node, script, code):
    assert node.cli.run(["launch", "--session-new=s", "sh", "-c", script]).code == code
    assert node.cli.sessions() == []
