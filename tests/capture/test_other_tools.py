"""py-spy, the Flight Recorder, and the plan for ncu."""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from capture.conftest import PATIENCE_S, Node, request

from perfd.capture.node.job_guards import JobProgress
from perfd.capture.stacks.flight_recorder_tool import FlightRecorderTool, dump_stem
from perfd.capture.stacks.pyspy_tool import PySpyTool, find_py_spy
from perfd.cli import main
from perfd.clock import SystemClock
from perfd.model import CaptureState, CaptureTool, RankPlacement


@pytest.fixture
def node(tmp_path):
    node = Node(directory=tmp_path, nsys=Path("/nowhere"))
    yield node
    node.end()


@pytest.fixture
def rank(node):
    def start(**environment):
        process = subprocess.Popen(
            # It speaks once it runs and starts no other program in its place: meanwhile the kernel may not
            # show its environment.
            ["sh", "-c", "echo; sleep 60; :"],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        process.stdout.readline()
        node.jobs.append(process)
        return RankPlacement(job="llama", rank=3, pid=process.pid)

    return start


def script(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_stacks_of_a_job_that_hangs_are_dumped_though_its_log_is_silent(node, rank, tmp_path):
    placement = rank()
    py_spy = script(tmp_path / "py-spy", 'echo "[{\\"args\\": \\"$*\\"}]"')
    node.progress = JobProgress(last_line_unix_ns=1)
    tool = PySpyTool(py_spy, placements=lambda job: [placement])
    node.executor(tools=[tool]).handle(request(tool=CaptureTool.PY_SPY))
    done = node.until_state(CaptureState.DONE)
    assert done.ranks == (3,)
    (said,) = json.loads(Path(done.files[0].path).read_text())
    assert said["args"] == f"dump --pid {placement.pid} --json --nonblocking"


def test_a_dump_that_is_not_allowed_says_what_it_needs(node, rank, tmp_path):
    py_spy = script(tmp_path / "py-spy", "echo Permission Denied >&2; exit 1")
    placement = rank()
    tool = PySpyTool(py_spy, placements=lambda job: [placement])
    node.executor(tools=[tool]).handle(request(tool=CaptureTool.PY_SPY))
    assert "Permission Denied; it needs" in node.until_state(CaptureState.FAILED).reason


def test_a_rank_that_is_no_python_is_not_said_to_lack_rights(node, rank, tmp_path):
    said = "Error: Failed to find python version from target process"
    py_spy = script(tmp_path / "py-spy", f"echo {said} >&2; exit 1")
    placement = rank()
    tool = PySpyTool(py_spy, placements=lambda job: [placement])
    node.executor(tools=[tool]).handle(request(tool=CaptureTool.PY_SPY))
    reason = node.until_state(CaptureState.FAILED).reason
    assert reason == "py-spy dump failed: Failed to find python version from target process."


def test_py_spy_is_the_configured_one_or_that_on_the_path_and_a_mistake_is_not_hidden(tmp_path):
    (tmp_path / "bin").mkdir()
    on_path = script(tmp_path / "bin" / "py-spy", "exit 0")
    other = script(tmp_path / "other", "exit 0")
    assert find_py_spy(None, str(tmp_path / "bin")) == on_path
    assert find_py_spy(str(other), str(tmp_path / "bin")) == other
    assert find_py_spy(str(tmp_path / "none"), str(tmp_path / "bin")) is None


def test_python_processes_of_a_run_are_dumped_though_none_is_a_known_rank(node, tmp_path):
    py_spy = script(tmp_path / "py-spy", 'echo "[{\\"args\\": \\"$*\\"}]"')
    waits = "import time; time.sleep(600)"
    ours = str(tmp_path)
    for command, run in (
        ([sys.executable, "-c", waits], ours),
        ([sys.executable, "-c", waits], "theirs"),
        (["sleep", "600"], ours),
    ):
        environment = {**os.environ, "PERFD_RUN": run}
        # A process group each, which the node ends.
        node.jobs.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
        )
    python = node.jobs[-3]
    tool = PySpyTool(py_spy, placements=lambda job: (), run=ours)

    deadline = time.monotonic() + 60
    while tool.ready("llama", ()).reason and time.monotonic() < deadline:
        time.sleep(0.05)  # Between fork and exec a process still has our environment.
    assert [dict(target.processes) for target in tool.ready("llama", ()).targets] == [{python.pid: None}]
    assert tool.ready("llama", (2,)).refused == {2: "No process of rank 2 is known on this node."}

    node.executor(tools=[tool]).handle(request(tool=CaptureTool.PY_SPY))
    (file,) = node.until_state(CaptureState.DONE).files
    assert Path(file.path).name == f"process_{python.pid}.stacks.json"


def test_a_process_of_several_ranks_is_dumped_once(node, rank, tmp_path):
    pid = rank().pid
    placements = [RankPlacement(job="llama", rank=one, pid=pid) for one in (1, 0)]
    tool = PySpyTool(script(tmp_path / "py-spy", "exit 0"), placements=lambda job: placements)

    assert [dict(target.processes) for target in tool.ready("llama", ()).targets] == [{pid: 0}]
    asked = tool.ready("llama", (0, 1))
    assert [dict(target.processes) for target in asked.targets] == [{pid: 0}]
    assert (asked.refused, asked.shared) == ({}, {1: 0})

    node.executor(tools=[tool]).handle(request(tool=CaptureTool.PY_SPY, ranks=(0, 1)))
    # What becomes of the process becomes of both.
    assert node.until_state(CaptureState.FAILED).ranks == (0, 1)


def test_without_py_spy_nothing_is_promised(node):
    tool = PySpyTool(None, placements=lambda job: ())
    assert not tool.available()
    node.executor(tools=[tool]).handle(request(tool=CaptureTool.PY_SPY))
    assert "pip install py-spy" in node.until_state(CaptureState.REFUSED).reason


def recorder(placement, patience_s=PATIENCE_S):
    return FlightRecorderTool(placements=lambda job: [placement], clock=SystemClock(), patience_s=patience_s)


def answering(pipe, dump):
    """A rank's thread that writes its dump when it is asked."""

    def answer():
        with pipe.open("rb") as asked:
            asked.read(1)
        dump.write_bytes(b"ring")

    thread = threading.Thread(target=answer)
    thread.start()
    # The pipe has a reader as soon as it can be opened for writing.
    return thread, os.open(pipe, os.O_WRONLY)


def test_the_flight_recorder_is_asked_by_its_pipe(node, rank, tmp_path):
    pipe, dump = tmp_path / "fr_3.pipe", tmp_path / "dump_3"
    os.mkfifo(pipe)
    placement = rank(
        TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/fr_", TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/dump_"
    )
    thread, writer = answering(pipe, dump)
    node.executor(tools=[recorder(placement)]).handle(request(tool=CaptureTool.FLIGHT_RECORDER))
    done = node.until_state(CaptureState.DONE)
    os.close(writer)
    thread.join()
    assert Path(done.files[0].path).read_bytes() == b"ring"


def test_an_old_dump_does_not_pass_for_a_new_one(node, rank, tmp_path):
    os.mkfifo(tmp_path / "fr_3.pipe")
    (tmp_path / "dump_3").write_bytes(b"old")
    reader = os.open(tmp_path / "fr_3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    placement = rank(
        TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/fr_", TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/dump_"
    )
    node.executor(tools=[recorder(placement, patience_s=0.5)]).handle(
        request(tool=CaptureTool.FLIGHT_RECORDER)
    )
    assert "No dump came" in node.until_state(CaptureState.LOST).reason
    os.close(reader)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "without TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
        ({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/nowhere/", "TORCH_FR_BUFFER_SIZE": "0"}, "records nothing"),
        ({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/nowhere/"}, "has no pipe"),
    ],
)
def test_a_rank_that_cannot_be_asked_is_refused(node, rank, environment, words):
    node.executor(tools=[recorder(rank(**environment))]).handle(request(tool=CaptureTool.FLIGHT_RECORDER))
    assert words in node.until_state(CaptureState.REFUSED).reason


def test_where_dumps_go_follows_pytorchs_own_order():
    old = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/o", "HOME": "/h"}
    assert dump_stem({**old, "TORCH_FR_DUMP_TEMP_FILE": "/n"}) == "/n"
    assert dump_stem(old) == "/o"
    assert dump_stem({"HOME": "/h"}) == "/h/.cache/torch/comm_lib_trace_rank_"


def test_a_plan_for_ncu_reruns_one_rank_and_runs_nothing(capsys):
    command = ["capture", "plan", "--ncu", "--kernel", "gemm.*", "--skip", "3", "--shared-gpu"]
    assert main([*command, "--", "python", "train.py", "--name", "a b"]) == 0
    *notes, line = capsys.readouterr().out.splitlines()
    words = shlex.split(line)
    assert words[:2] == ["env", "RANK=0"]
    assert words[-4:] == ["python", "train.py", "--name", "a b"]
    assert words[words.index("--kernel-name") + 1] == "regex:gemm.*"
    assert words[words.index("--clock-control") + 1] == "none"
    assert any("Never run ncu on a rank of a live job" in note for note in notes)


def test_a_plan_for_a_range_says_that_it_is_pushed(capsys):
    assert main(["capture", "plan", "--ncu", "--nvtx", "train@forward", "--", "python", "t.py"]) == 0
    assert "--nvtx-include train@forward/" in capsys.readouterr().out


def _planned(capsys, *options: str) -> str:
    assert main(["capture", "plan", "--ncu", *options, "--", "python", "t.py"]) == 0
    return capsys.readouterr().out.splitlines()[-1]


def test_a_range_is_profiled_whole_and_a_kernel_once_unless_a_count_is_given(capsys):
    assert "--launch-count" not in _planned(capsys, "--nvtx", "forward")
    assert "--launch-count 1 " in _planned(capsys, "--kernel", "gemm")
    assert "--launch-count 7 " in _planned(capsys, "--nvtx", "forward", "--count", "7")


def test_a_plan_takes_ranges_of_both_kinds_sections_replay_and_the_profiler_api(capsys):
    assert "--nvtx-include forward/ " in _planned(capsys, "--nvtx", "forward")
    assert "--nvtx-include forward " in _planned(capsys, "--nvtx", "forward", "--start-end")
    some = _planned(capsys, "--kernel", "x", "--section", "SpeedOfLight", "--section", "Occupancy")
    assert "--section SpeedOfLight --section Occupancy" in some
    assert "--set full" not in some
    assert "--replay-mode application" in _planned(capsys, "--kernel", "x", "--replay-mode", "application")
    assert "--profile-from-start off" in _planned(capsys, "--profiler-api")


@pytest.mark.parametrize(
    "command",
    [
        ["vllm", "serve", "m", "--tensor-parallel-size", "2"],
        ["python", "-m", "sglang.launch_server", "--tp=8"],
        ["python", "-m", "sglang.launch_server", "--dp-size", "4"],
    ],
)
def test_a_server_that_starts_several_ranks_is_refused_by_its_flag(command, capsys):
    assert main(["capture", "plan", "--ncu", "--kernel", "gemm", "--", *command]) == 2
    assert "starts several ranks" in capsys.readouterr().err
    one = [
        word.replace("=8", "=1") if "=" in word else {"2": "1", "4": "1"}.get(word, word) for word in command
    ]
    assert main(["capture", "plan", "--ncu", "--kernel", "gemm", "--", *one]) == 0


def test_a_section_is_a_word(capsys):
    assert (
        main(["capture", "plan", "--ncu", "--kernel", "x", "--section", "a b", "--", "python", "t.py"]) == 2
    )
    assert "--list-sections" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["/opt/bin/torchrun", "--nproc-per-node", "8", "t.py"],
        ["python", "-m", "torch.distributed.run", "t.py"],
        ["env", "A=1", "srun", "python", "t.py"],
    ],
)
def test_a_plan_for_a_launcher_would_be_of_all_ranks_and_is_refused(capsys, command):
    assert main(["capture", "plan", "--ncu", "--kernel", "gemm", "--", *command]) == 2
    assert "give the command of one rank" in capsys.readouterr().err


def test_a_launcher_among_the_arguments_of_the_script_is_none(capsys):
    command = ["python", "t.py", "--launcher", "srun"]
    assert main(["capture", "plan", "--ncu", "--kernel", "gemm", "--", *command]) == 0
    assert capsys.readouterr().out.endswith("python t.py --launcher srun\n")


def _nsys_words(capsys, *arguments: str) -> list[str]:
    assert main(["capture", "plan", "--nsys", *arguments]) == 0
    return shlex.split(capsys.readouterr().out.splitlines()[-1])


def test_a_plan_for_nsys_collects_what_the_job_asks_for_and_does_not_end_it(capsys):
    words = _nsys_words(capsys, "--profiler-api", "--graph-nodes", "--", "torchrun", "t.py", "a b")
    assert words[:2] == ["nsys", "profile"]
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(words)
    assert "--cuda-graph-trace=node" in words
    assert words[-3:] == ["torchrun", "t.py", "a b"]


def test_a_plan_for_nsys_compares_ranges_that_are_plain_strings(capsys):
    words = _nsys_words(capsys, "--nvtx", "step@perfd", "--", "python", "t.py")
    assert words[:3] == ["env", "NSYS_NVTX_PROFILER_REGISTER_ONLY=0", "nsys"]
    assert {"--capture-range=nvtx", "--nvtx-capture=step@perfd", "--capture-range-end=stop"} <= set(words)


def test_a_plan_for_all_of_a_job_has_no_capture_range(capsys):
    assert not [word for word in _nsys_words(capsys, "--", "python", "t.py") if "capture-range" in word]


def test_the_profiled_steps_of_megatron_are_all_that_nsys_collects(capsys):
    steps = ["torchrun", "pretrain_gpt.py", "--profile", "--profile-step-start=10", "--profile-step-end=12"]
    assert "--capture-range=cudaProfilerApi" in _nsys_words(capsys, "--profiler-api", "--", *steps)
    assert main(["capture", "plan", "--nsys", "--", *steps]) == 2
    assert "add --profiler-api" in capsys.readouterr().err
    assert main(["capture", "plan", "--nsys", "--profiler-api", "--", *steps[:2], *steps[3:]]) == 2
    assert "no effect without --profile" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--nsys"], "job's command after --"),
        (["--nsys", "--profiler-api", "--nvtx", "a", "--", "x"], "give one of them"),
        (["--nsys", "--nvtx", "a b", "--", "x"], "is not a range"),
        (["--nsys", "--kernel", "gemm", "--", "x"], "--kernel is an option of --ncu"),
        (["--ncu", "--kernel", "gemm", "--graph-nodes", "--", "x"], "--graph-nodes is an option of --nsys"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(capsys, arguments, why):
    assert main(["capture", "plan", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_a_plan_without_a_kernel_or_range_is_refused(capsys):
    assert main(["capture", "plan", "--ncu", "--", "python", "t.py"]) == 2
    assert "--kernel REGEX, --nvtx RANGE or --profiler-api" in capsys.readouterr().err
