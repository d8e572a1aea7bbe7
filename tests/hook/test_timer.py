"""The step timer: nothing waits for the GPU, warm-up is left out, and no agent means no work."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from perfd.hook import StepTimer, default_socket


class Gpu:
    """A stream that is as far as the test says, and the marks that were recorded on it."""

    def __init__(self) -> None:
        self.enqueued_ms = 0.0
        self.done_ms = float("inf")
        self.marks = 0
        self.capturing = False

    def mark(self) -> Mark:
        self.marks += 1
        return Mark(self)


class Mark:
    """An event on the stream of a test."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at_ms = float("nan")

    def record(self) -> None:
        assert not self._gpu.capturing, "The event would be a part of the graph."
        self.at_ms = self._gpu.enqueued_ms

    def query(self) -> bool:
        assert not self._gpu.capturing, "CUDA gives up the capture."
        return self.at_ms <= self._gpu.done_ms

    def elapsed_time(self, end: Mark) -> float:
        assert end.query(), "Reading a mark that was not passed makes the host wait."
        return end.at_ms - self.at_ms


class Agent:
    """The other end of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)

    def got(self) -> list[dict]:
        messages = []
        while True:
            try:
                messages.append(json.loads(self.socket.recv(1 << 16)))
            except BlockingIOError:
                return messages


@pytest.fixture
def agent(tmp_path: Path):
    one = Agent(tmp_path / "hook.sock")
    yield one
    one.socket.close()


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


def timer_of(agent_path: Path, gpu: Gpu, **options) -> StepTimer:
    settings = {"rank": 3, "world_size": 8, "warmup_steps": 0} | options
    return StepTimer(socket_path=str(agent_path), new_mark=gpu.mark, **settings)


def steps(timer: StepTimer, gpu: Gpu, count: int) -> None:
    for _ in range(count):
        with timer.step():
            with timer.phase("forward"):
                gpu.enqueued_ms += 10
            with timer.phase("backward"):
                gpu.enqueued_ms += 20
            gpu.enqueued_ms += 5


def test_a_step_is_sent_when_the_gpu_has_passed_it(agent: Agent, gpu: Gpu):
    timer = timer_of(agent.path, gpu)

    steps(timer, gpu, 3)

    first, second = agent.got()
    assert (first["step"], second["step"], first["rank"], first["world_size"]) == (1, 2, 3, 8)
    assert first["step_s"] == pytest.approx(0.035)
    assert first["phases"] == pytest.approx({"forward": 0.01, "backward": 0.02})
    timer.close()


def test_a_gpu_that_is_behind_is_not_waited_for(agent: Agent, gpu: Gpu):
    timer = timer_of(agent.path, gpu)
    gpu.done_ms = 20

    steps(timer, gpu, 4)
    assert agent.got() == []

    gpu.done_ms = 100
    steps(timer, gpu, 1)
    assert [message["step"] for message in agent.got()] == [1, 2]
    timer.close()


def test_steps_that_the_gpu_never_passes_are_given_up_and_counted(agent: Agent, gpu: Gpu):
    timer = timer_of(agent.path, gpu)
    gpu.done_ms = -1

    steps(timer, gpu, 30)
    gpu.done_ms = float("inf")
    steps(timer, gpu, 1)

    reported = agent.got()
    steps(timer, gpu, 1)
    reported += agent.got()
    assert [message["step"] for message in reported][:17] == list(range(15, 32))
    assert timer.dropped_steps == 14
    assert reported[-1]["dropped"] == 14
    timer.close()


def test_marks_are_used_again(agent: Agent, gpu: Gpu):
    timer = timer_of(agent.path, gpu)

    steps(timer, gpu, 5)
    made = gpu.marks
    steps(timer, gpu, 50)

    assert gpu.marks == made
    timer.close()


def test_warm_up_is_left_out(agent: Agent, gpu: Gpu):
    timer = timer_of(agent.path, gpu, warmup_steps=2)

    steps(timer, gpu, 5)

    assert [message["step"] for message in agent.got()] == [3, 4]
    timer.close()


def test_waiting_for_data_is_a_phase_of_the_step_that_it_delayed(agent: Agent, gpu: Gpu, monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)

    def loader():
        nonlocal now_s
        for delay_s in (0.5, 0.25, 0.0):
            now_s += delay_s
            yield delay_s

    timer = timer_of(agent.path, gpu)
    for _ in timer.batches(loader()):
        with timer.step():
            gpu.enqueued_ms += 1

    assert [message["phases"] for message in agent.got()] == [{"data_loading": 0.5}, {"data_loading": 0.25}]
    timer.close()


def test_a_phase_of_each_micro_batch_is_summed_up(agent: Agent, gpu: Gpu):
    timer = timer_of(agent.path, gpu)
    for _ in range(2):
        with timer.step():
            for _ in range(4):
                with timer.phase("forward"):
                    gpu.enqueued_ms += 2

    assert agent.got()[0]["phases"] == pytest.approx({"forward": 0.008})
    timer.close()


def test_without_an_agent_no_mark_is_made(tmp_path: Path, gpu: Gpu):
    timer = timer_of(tmp_path / "none.sock", gpu)

    steps(timer, gpu, 10)

    assert gpu.marks == 0
    timer.close()


def test_an_agent_that_comes_later_is_found_within_a_second_and_warm_up_is_over_by_then(
    tmp_path: Path, gpu: Gpu, monkeypatch
):
    now_s = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    timer = timer_of(tmp_path / "hook.sock", gpu, warmup_steps=3)
    late = Agent(tmp_path / "hook.sock")
    now_s += 0.9
    steps(timer, gpu, 10)
    now_s += 0.1

    steps(timer, gpu, 3)

    assert [message["step"] for message in late.got()] == [11, 12]
    timer.close()
    late.socket.close()


def test_an_agent_that_goes_away_does_not_disturb_the_loop(agent: Agent, gpu: Gpu):
    timer = timer_of(agent.path, gpu)
    steps(timer, gpu, 3)
    agent.socket.close()

    steps(timer, gpu, 20)

    made = gpu.marks
    steps(timer, gpu, 5)
    assert gpu.marks == made
    timer.close()


def test_an_agent_that_does_not_read_does_not_block_the_loop(agent: Agent, gpu: Gpu):
    timer = timer_of(agent.path, gpu)

    steps(timer, gpu, 3000)

    assert timer.dropped_steps > 0
    assert agent.got()[0]["step"] == 1
    timer.close()


def test_an_error_inside_a_step_gets_through_and_the_next_step_is_timed(agent: Agent, gpu: Gpu):
    timer = timer_of(agent.path, gpu)
    with pytest.raises(RuntimeError, match="of the job"), timer.step(), timer.phase("forward"):
        raise RuntimeError("of the job")

    steps(timer, gpu, 2)

    assert [message["step"] for message in agent.got()] == [2]
    timer.close()


def test_the_rank_is_that_of_the_launcher(agent: Agent, gpu: Gpu, monkeypatch):
    for name in ("RANK", "SLURM_PROCID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_NTASKS", "16")
    timer = timer_of(agent.path, gpu, rank=None, world_size=None)

    steps(timer, gpu, 2)

    (message,) = agent.got()
    assert (message["rank"], message["world_size"]) == (5, 16)
    timer.close()


def test_the_socket_is_where_the_environment_says():
    assert default_socket({"PERFD_HOOK_SOCKET": "/x/y"}) == "/x/y"
    assert default_socket({}).endswith((".sock",))


def test_a_socket_of_another_machine_is_not_looked_for_here(tmp_path: Path):
    reported = {"PERFD_HOOK_SOCKET": str(tmp_path / "hook.sock")}
    here, elsewhere = {"PERFD_HOOK_NODE": socket.gethostname()}, {"PERFD_HOOK_NODE": "another"}

    assert default_socket(reported | here) == reported["PERFD_HOOK_SOCKET"]
    assert default_socket(reported | elsewhere) == default_socket({})
    # A container has a name of its own, and may have the folder of the machine.
    (tmp_path / "hook.sock").touch()
    assert default_socket(reported | elsewhere) == reported["PERFD_HOOK_SOCKET"]


class FakeCuda:
    """As much of `torch.cuda` as the hook uses, on a stream of a test."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.ranges: list[str] = []
        self.nvtx = self

    def is_available(self) -> bool:
        return True

    def Event(self, *, enable_timing: bool) -> Mark:  # noqa: N802  (torch's name)
        assert enable_timing
        return self._gpu.mark()

    def is_current_stream_capturing(self) -> bool:
        return self._gpu.capturing

    def range_push(self, name: str) -> None:
        self.ranges.append(name)

    def range_pop(self) -> None:
        self.ranges.append("end")

    def mark(self, name: str) -> None:
        """NVTX's own, which stands for an instant."""


@pytest.fixture
def cuda(gpu: Gpu, monkeypatch) -> FakeCuda:
    torch = types.ModuleType("torch")
    torch.cuda = FakeCuda(gpu)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch.cuda


def test_with_torch_phases_are_cuda_events_and_nvtx_ranges(agent: Agent, gpu: Gpu, cuda: FakeCuda):
    timer = StepTimer(socket_path=str(agent.path), rank=0, warmup_steps=0)

    steps(timer, gpu, 2)

    (message,) = agent.got()
    assert (message["clock"], message["phases"]) == (
        "cuda",
        pytest.approx({"forward": 0.01, "backward": 0.02}),
    )
    assert cuda.ranges[:6] == ["step 1", "forward", "end", "backward", "end", "end"]
    timer.close()


def test_while_a_cuda_graph_is_captured_no_event_is_touched(agent: Agent, gpu: Gpu, cuda: FakeCuda):
    timer = StepTimer(socket_path=str(agent.path), rank=0, warmup_steps=0)
    gpu.capturing = True
    steps(timer, gpu, 2)
    gpu.capturing = False
    with timer.step():
        gpu.capturing = True
        with timer.phase("forward"):
            pass
        gpu.capturing = False
    steps(timer, gpu, 2)

    whole, after = agent.got()
    assert (whole["step"], whole["phases"]) == (3, {})
    assert after["phases"] == pytest.approx({"forward": 0.01, "backward": 0.02})
    assert cuda.ranges[:6] == ["step 1", "forward", "end", "backward", "end", "end"]
    timer.close()


def test_a_torch_without_nvtx_costs_the_ranges_alone(agent: Agent, gpu: Gpu, cuda: FakeCuda, monkeypatch):
    def absent(*_: object) -> None:
        raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")

    monkeypatch.setattr(cuda, "mark", absent, raising=False)
    monkeypatch.setattr(cuda, "range_push", absent)
    timer = StepTimer(socket_path=str(agent.path), rank=0, warmup_steps=0)

    steps(timer, gpu, 2)

    assert len(agent.got()) == 1
    timer.close()


def test_the_module_does_not_import_torch_before_something_is_timed():
    code = "import perfd.hook, perfd_collectors.hook, sys; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_process_group_that_is_made_after_the_timer_names_its_rank(
    agent: Agent, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    timer = timer_of(agent.path, gpu, rank=None, world_size=None)
    monkeypatch.setenv("LOCAL_RANK", "1")

    steps(timer, gpu, 2)

    assert [(one["rank"], one["world_size"]) for one in agent.got()] == [(1, None)]
    timer.close()


def test_a_step_that_cannot_be_wrapped_begins_and_ends(agent, gpu):
    timer = StepTimer(warmup_steps=0, socket_path=str(agent.path), new_mark=gpu.mark, nvtx=False)
    for number in (7, 8):
        timer.begin_step(number, data_s=0.5)
        gpu.enqueued_ms += 100
        timer.end_step()
    timer.begin_step(9)

    timer.close()

    assert [(m["step"], m["step_s"], m["phases"]) for m in agent.got()] == [
        (7, 0.1, {"data_loading": 0.5}),
        (8, 0.1, {"data_loading": 0.5}),
    ]


def test_what_follows_a_pause_is_no_part_of_the_step(agent, gpu):
    timer = StepTimer(warmup_steps=0, socket_path=str(agent.path), new_mark=gpu.mark, nvtx=False)
    with timer.step():
        gpu.enqueued_ms += 100
    timer.pause()
    gpu.enqueued_ms += 5000  # An evaluation.
    with timer.step():
        pass
    timer.close()

    assert [m["step_s"] for m in agent.got()] == [0.1]


def test_amounts_of_a_step_add_up(agent, gpu):
    timer = StepTimer(warmup_steps=0, socket_path=str(agent.path), new_mark=gpu.mark, nvtx=False)
    with timer.step():
        timer.count(samples=4, tokens=100)
        timer.count(samples=4, flops=1e9)
    with timer.step():
        pass
    timer.pause()
    timer.close()

    first, second = agent.got()
    assert (first["samples"], first["tokens"], first["flops"]) == (8, 100, 1e9)
    assert "samples" not in second
