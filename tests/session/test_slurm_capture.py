"""What `perfd capture --slurm` does with SLURM's words, and with helpers that say too little."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.clock import SystemClock
from perfd.collector_loading import load_collector
from perfd.config import AgentCaptureConfig
from perfd.errors import CaptureError
from perfd.model import CaptureFile, CaptureState, CaptureStatus, CaptureTool
from perfd.session.slurm.helper_protocol import (
    FromNode,
    HelperSetup,
    LineAssembly,
    NodeReady,
    Rank,
    RankStatus,
    encode,
    lines_of,
)
from perfd.session.slurm.node_helper import ranks_here, serve
from perfd.session.slurm.slurm_capture import CaptureOptions, SlurmCapture, SrunTimeouts
from perfd.session.slurm.slurm_jobs import (
    RankScope,
    Slurm,
    SlurmJob,
    SlurmStep,
    choose_step,
    parse_records,
    parse_steps,
    running,
)
from tests.support.fake_node import FakeNode

# Printed by SLURM 22.05.8.
STEPS = """\
StepId=17.batch UserId=0 StartTime=2026-11-21T06:18:30 State=RUNNING NodeList=n1 Nodes=1 Tasks=1 Name=batch
StepId=17.0 UserId=0 State=RUNNING NodeList=n[1-4] Nodes=4 CPUs=4 Tasks=4 Name=perfd-sidecar Network=(null)
StepId=17.1 UserId=0 NodeList=n[1-4] Nodes=4 CPUs=8 Tasks=8 Name=python -u a b SrunHost:Pid=n1:15
StepId=17.2 UserId=0 State=RUNNING NodeList=n1 Nodes=1 CPUs=1 Tasks=1 Name=bash Network=(null)
"""
JOB = SlurmJob(job_id="17", name="17", batch_host="n1", steps=parse_steps(STEPS))


def test_the_training_is_the_largest_step_that_is_not_perfds_own():
    assert choose_step(JOB, None) == SlurmStep(number=1, name="python -u a b", tasks=8, node_list="n[1-4]")
    assert choose_step(JOB, 2).name == "bash"


def test_without_a_step_the_training_is_in_the_batch_script():
    alone = SlurmJob(job_id="17", name="17", batch_host="n1", steps=parse_steps(STEPS)[:1])
    assert choose_step(alone, None) is None


def test_a_step_that_does_not_run_is_refused_with_those_that_do():
    with pytest.raises(CaptureError, match=r"no running step 9; there are: 0 \(perfd-sidecar\), 1 \(python"):
        choose_step(JOB, 9)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ("", "SLURM has no job 17"),
        ("JobId=17 JobState=PENDING Reason=Resources", "Job 17 is PENDING; only a running job"),
        (
            "\n".join(f"JobId={17 + n} ArrayJobId=17 ArrayTaskId={n} JobState=RUNNING" for n in (1, 2)),
            r"array of which 2 tasks run; name one \(17_1, 17_2\)",
        ),
    ],
)
def test_what_is_not_one_running_job_is_refused(records: str, words: str):
    with pytest.raises(CaptureError, match=words):
        running("17", parse_records(records))


@pytest.mark.parametrize("job", ["", "-1", "abc", "17;reboot", "17.0", "--all"])
def test_what_is_no_jobs_number_never_reaches_slurm(job: str):
    with pytest.raises(CaptureError, match="is not a job of SLURM"):
        Slurm({"PATH": "/nowhere"}).job(job)


def test_without_slurms_commands_the_error_says_where_to_go():
    with pytest.raises(CaptureError, match=r"Cannot run scontrol .*: run this where SLURM's commands are"):
        Slurm({"PATH": "/nowhere"}).job("17")


def test_the_variables_of_a_jobs_shell_do_not_become_options_of_our_step():
    environment = {"SLURM_NTASKS": "8", "SRUN_DEBUG": "3", "SLURM_CONF": "/etc/s", "HOME": "/h"}
    assert Slurm(environment).environment == {"SLURM_CONF": "/etc/s", "HOME": "/h"}


@given(st.text())
def test_no_words_of_slurm_break_the_parser(text: str):
    for fields in parse_records(text):
        assert all(isinstance(value, str) for value in fields.values())
    parse_steps(text)


@given(
    reason=st.text(max_size=3000),
    noise=st.lists(st.text(max_size=50).map(lambda text: text.replace("perfd/1", "")), max_size=5),
)
def test_messages_survive_short_lines_and_the_lines_of_others_between(reason: str, noise: list[str]):
    status = CaptureStatus(capture_id="capture", state=CaptureState.FAILED, time_unix_ns=1, reason=reason)
    sent = {"n1": RankStatus(status=status), "n2": NodeReady(ranks=[Rank(rank=3, gpu=1)], reason=reason)}
    lines = [list(lines_of(node, message)) for node, message in sent.items()]
    assert all(len(line.encode()) < 1024 and line.endswith("\n") for part in lines for line in part)
    assembly = LineAssembly()
    mixed = [*noise, *(line for pair in zip(*lines, strict=False) for line in pair)]
    shortest = min(map(len, lines))
    mixed += [line for part in lines for line in part[shortest:]]
    got = [found for line in mixed if (found := assembly.feed(line)) is not None]
    assert {node: msgspec.json.encode(message) for node, message in got} == {
        node: msgspec.json.encode(message) for node, message in sent.items()
    }


@given(st.text())
def test_lines_of_others_are_never_messages(line: str):
    assert LineAssembly().feed(line) is None or line.startswith("perfd/1 ")


def test_a_message_that_grows_beyond_a_mebibyte_is_dropped():
    assembly = LineAssembly()
    for _ in range((1 << 20) // 600 + 1):
        assert assembly.feed(f"perfd/1 n1 + {'x' * 600}\n") is None
    said = NodeReady(ranks=[], reason="Nobody is here.")
    (line,) = lines_of("n1", said)
    assert assembly.feed(line) == ("n1", said), "nothing of the long one stands before it"


def test_ranks_are_those_of_the_step_on_this_node_and_their_pythons(tmp_path: Path):
    node = FakeNode(tmp_path)

    def task(pid: int, rank: int, *, parent: int, program: str, **more: str) -> None:
        environ = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "1", "SLURMD_NODENAME": "n1", **more}
        ranks = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "6"}
        node.process(pid, {**environ, **ranks}, parent=parent, name=program)
        (node.proc / str(pid) / "exe").symlink_to(f"/usr/bin/{program}")

    for daemon in (50, 51, 52, 53):
        node.process(daemon, None, name="slurmstepd")
    task(60, 0, parent=50, program="bash")
    task(61, 0, parent=60, program="python3.11")
    task(62, 0, parent=61, program="python3.11")
    task(70, 1, parent=50, program="python3.11")
    # Another step, another node of this machine, another job.
    task(80, 3, parent=51, program="python3.11", SLURM_STEP_ID="0")
    task(81, 4, parent=52, program="python3.11", SLURMD_NODENAME="n2")
    task(82, 5, parent=53, program="python3.11", SLURM_JOB_ID="18")
    found = ranks_here(load_collector("ranks"), job="17", job_id="17", step=1, node="n1", proc=node.proc)
    assert [(rank.job, rank.rank, rank.pid) for rank in found] == [("17", 0, 61), ("17", 1, 70)]


def capture(
    tmp_path: Path,
    program: str,
    *,
    nodes: tuple[str, ...] = ("n1", "n2"),
    ranks: str = "all",
    patience: SrunTimeouts | None = None,
):
    """A capture whose srun is a Python program; `say(node, message)` and `orders` are its world."""
    head = (
        "import sys\n"
        "from perfd.model import *\n"
        "from perfd.session.slurm.helper_protocol import *\n"
        "def say(node, message):\n"
        "    [print(line, end='', flush=True) for line in lines_of(node, message)]\n"
        "def told(node, state, *ranks, files=()):\n"
        "    say(node, RankStatus(status=CaptureStatus(capture_id='capture', state=CaptureState(state),\n"
        "        time_unix_ns=1, ranks=ranks, files=files)))\n"
        "def order():\n"
        "    return decode(sys.stdin.readline())\n"
    )
    srun = subprocess.Popen(
        [sys.executable, "-c", head + program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wish = CaptureOptions(
        capture_id="17-1",
        tool=CaptureTool.PY_SPY,
        ranks=ranks,
        duration_s=1.0,
        directory=tmp_path,
        config=AgentCaptureConfig(),
    )
    try:
        place = RankScope(step=1, nodes=nodes)
        return SlurmCapture(wish, JOB, place, srun, SystemClock(), patience=patience).run()
    finally:
        gone = srun.poll() is not None
        srun.kill()
        srun.wait()
        for pipe in (srun.stdin, srun.stdout, srun.stderr):
            if pipe is not None:
                pipe.close()
        assert gone, "srun is gone when the capture is told"


def outcomes(found) -> dict[tuple[str, int | None], tuple[CaptureState | None, str]]:
    return {(who.node, who.rank): (who.state, who.reason) for who in found.participants}


def test_every_rank_that_its_helper_ends_has_that_outcome(tmp_path: Path):
    found = capture(
        tmp_path,
        "order(); say('n1', NodeReady(ranks=[Rank(rank=0)])); say('n2', NodeReady(ranks=[Rank(rank=1)]))\n"
        "asked = order().requests\n"
        "told('n1', 'done', *asked['n1'].ranks, files=[CaptureFile(path='/f', size_bytes=5)])\n"
        "told('n2', 'failed', *asked['n2'].ranks)\n",
    )
    assert outcomes(found) == {("n1", 0): (CaptureState.DONE, ""), ("n2", 1): (CaptureState.FAILED, "")}
    assert found.participants[0].files == (CaptureFile(path="/f", size_bytes=5),)
    assert found.state is CaptureState.FAILED
    assert found.reason.startswith("1 of 2 ranks are done.")


def test_several_nodes_start_together_and_one_node_at_once(tmp_path: Path):
    both = (
        "order(); say('n1', NodeReady(ranks=[Rank(rank=0)])); say('n2', NodeReady(ranks=[Rank(rank=1)]))\n"
        "for node, one in order().requests.items():\n"
        "    told(node, 'done' if one.start_unix_ns else 'failed', *one.ranks)\n"
    )
    assert capture(tmp_path, both).state is CaptureState.DONE
    assert capture(tmp_path, both, ranks="1").state is CaptureState.FAILED


def test_ranks_that_the_job_does_not_have_are_refused_and_the_others_captured(tmp_path: Path):
    found = capture(
        tmp_path,
        "order(); say('n1', NodeReady(ranks=[Rank(rank=0)]))\n"
        "say('n2', NodeReady(reason='Nobody is here.'))\n"
        "order(); told('n1', 'done', 0)\n",
        ranks="0,7",
    )
    assert outcomes(found) == {
        ("n1", 0): (CaptureState.DONE, ""),
        ("", 7): (CaptureState.REFUSED, "Job 17 has no rank 7, or its node is unknown."),
    }


def test_a_helper_without_the_jobs_ranks_says_so_and_ends_with_its_orders(tmp_path: Path):
    setup = HelperSetup(
        job="llama", job_id="17", step=1, directory=str(tmp_path / "files"), capture=AgentCaptureConfig()
    )
    proc = FakeNode(tmp_path).proc
    reported: list[FromNode] = []
    serve([encode(setup)], reported.append, node="n1", search_path="", clock=SystemClock(), proc=proc)
    [present] = reported
    assert isinstance(present, NodeReady)
    assert present.ranks == []
    assert "step 17.1" in present.reason


def test_a_node_without_ranks_refuses_with_its_reason(tmp_path: Path):
    found = capture(
        tmp_path, "order(); say('n1', NodeReady(reason='Nobody is here.')); order()\n", nodes=("n1",)
    )
    assert outcomes(found) == {("n1", None): (CaptureState.REFUSED, "Nobody is here.")}


def test_a_helper_that_dies_is_lost_in_its_own_words(tmp_path: Path):
    found = capture(
        tmp_path,
        "order(); say('n1', NodeReady(ranks=[Rank(rank=0)]))\n"
        "print('perfd: disk full', file=sys.stderr)\n"
        "print('srun: error: n2: task 1: Exited with exit code 1', file=sys.stderr)\n",
    )
    assert outcomes(found) == {
        ("n1", 0): (CaptureState.LOST, "Its end was not reported: perfd: disk full."),
        ("n2", None): (CaptureState.LOST, "It received no order: perfd: disk full."),
    }


def test_an_srun_that_cannot_start_is_lost_everywhere_in_sruns_words(tmp_path: Path):
    found = capture(
        tmp_path, "sys.exit('srun: error: Unable to create step for job 17: Job/step already completing')"
    )
    assert {state for state, _ in outcomes(found).values()} == {CaptureState.LOST}
    assert "already completing" in found.reason


def test_a_choice_that_means_no_rank_ends_the_helpers_and_says_why(tmp_path: Path):
    with pytest.raises(CaptureError, match="does not choose ranks"):
        capture(
            tmp_path,
            "order(); say('n1', NodeReady(ranks=[Rank(rank=0)]))\n"
            "say('n2', NodeReady(ranks=[Rank(rank=1)]))\n"
            "assert sys.stdin.readline() == ''\n",
            ranks="rubbish",
        )


@pytest.mark.parametrize("output", ["", "sys.stdout.close(); sys.stderr.close(); os.close(1); os.close(2)\n"])
def test_an_srun_that_receives_nothing_is_killed_and_what_it_reported_stays(tmp_path: Path, output: str):
    found = capture(
        tmp_path,
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "order(); say('n1', NodeReady(ranks=[Rank(rank=0)])); order(); told('n1', 'done', 0)\n"
        f"{output}time.sleep(3600)\n",
        nodes=("n1",),
        patience=SrunTimeouts(leave_s=0.2, insist_s=0.2),
    )
    assert outcomes(found) == {("n1", 0): (CaptureState.DONE, "")}
