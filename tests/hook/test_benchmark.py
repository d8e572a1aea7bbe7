"""`perfd.hook.benchmark`: one synchronization, at the end, and doubts about numbers that deserve them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import types
import warnings
from pathlib import Path

import pytest

import perfd
from perfd.hook import benchmark

PYTHON = os.environ.get("PERFD_TORCH_PYTHON", "")


class Device:
    """A device whose work takes as long as the function says."""

    clock = "cuda"

    def __init__(self, times_ms: list[float], *, bytes_a_call: int = 0) -> None:
        self._times_ms = times_ms
        self._bytes_a_call = bytes_a_call
        self.now_ms = 0.0
        self.calls = 0
        self.synchronisations_at: list[int] = []
        self.marks_at: list[int] = []

    def work(self) -> None:
        self.now_ms += self._times_ms[self.calls % len(self._times_ms)]
        self.calls += 1

    def new_mark(self) -> Mark:
        self.marks_at.append(self.calls)
        return Mark(self)

    def synchronize(self) -> None:
        self.synchronisations_at.append(self.calls)

    def allocated_bytes(self) -> int:
        return self.calls * self._bytes_a_call

    def synchronizes(self, _fn) -> bool:
        return False


class Mark:
    """An event on the device of a test."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = self._device.now_ms

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Mark) -> float:
        return end.at_ms - self.at_ms


def measured(device: Device, **options):
    return benchmark(device.work, device=device, **options)


def test_the_numbers_are_those_of_the_calls_after_warming_up():
    device = Device([1000.0] * 2 + [1.0, 2.0, 3.0, 6.0])

    result = measured(device, iterations=4, warmup=2)

    assert (result.iterations, result.clock) == (4, "cuda")
    assert (result.mean_s, result.median_s, result.min_s, result.max_s) == pytest.approx(
        (3e-3, 2.5e-3, 1e-3, 6e-3)
    )
    assert result.stdev_s == pytest.approx(2.16e-3, rel=1e-2)


def test_marks_are_made_before_the_first_timed_call_and_the_host_waits_before_and_after_only():
    device = Device([1.0])

    measured(device, iterations=50, warmup=10)

    assert set(device.marks_at) == {10}
    assert device.synchronisations_at == [10, 60]


def test_steady_work_raises_no_doubt():
    assert measured(Device([100.0])).warnings == ()


@pytest.mark.parametrize(
    ("device", "doubt"),
    [
        (Device([100.0], bytes_a_call=512), "51,200 more bytes are allocated"),
        (Device([0.005]), "One call takes 5.0 µs"),
        (Device([100.0] * 35 + [50.0] * 75), "warm up longer"),
        (Device([100.0, 120.0, 90.0, 140.0, 110.0]), "vary by more than 10%"),
        (Device([100.0] * 19 + [300.0]), "vary by more than 10%"),
        (
            Device([100.0, 100.0, 100.0, 100.0, 180.0]),
            "two modes: 80 calls take about 100.0 ms, 20 about 180.0 ms",
        ),
        (Device([100.0, 111.0]), "two modes: 50 calls take about 100.0 ms, 50 about 111.0 ms"),
    ],
)
def test_known_mistakes_are_reported(device: Device, doubt: str):
    assert doubt in " ".join(measured(device).warnings)


def test_modes_less_than_a_tenth_apart_are_none():
    assert measured(Device([100.0, 109.0])).warnings == ()


def test_the_documented_patterns_time_what_was_compiled_before():
    page = (Path(perfd.__file__).parent.parent / "docs" / "hook.md").read_text()
    section = page.split("so that only execution is timed:\n")[1].split("\n\nWork on a stream other")[0]
    timed = []
    hook = types.SimpleNamespace(benchmark=lambda fn: timed.append(fn()) or "measured")
    graph = types.SimpleNamespace(replay=lambda: "graph")
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(CUDAGraph=lambda: graph, graph=lambda _: contextlib.nullcontext()),
        Tensor=object,
        utils=types.SimpleNamespace(
            cpp_extension=types.SimpleNamespace(
                load_inline=lambda _name, **_: types.SimpleNamespace(scale=lambda _: "extension")
            )
        ),
    )
    tensor = types.SimpleNamespace(numel=lambda: 1)
    names = {
        "hook": hook, "torch": torch, "layer": lambda _: None, "x": tensor, "y": tensor, "out": tensor,
        "blocks": 1, "a": 1, "b": 2, "c": 3, "gemm": None, "SOURCE": "",
        "add_kernel": {(1,): lambda *_, **options: f"triton {options['BLOCK']}"},
        "cute": types.SimpleNamespace(compile=lambda *_: lambda *_: "cute"),
    }  # fmt: skip

    exec(textwrap.dedent(section), names)

    assert timed == ["graph", "triton 1024", "cute", "extension"]


@pytest.mark.parametrize(
    ("options", "doubts"),
    [
        ({"warmup": 0}, ["Without warm-up, the first calls"]),
        ({"iterations": 9}, ["9 calls are too few"]),
        ({"iterations": 10, "warmup": 1}, []),
    ],
)
def test_too_few_calls_and_no_warm_up_are_reported(options, doubts: list[str]):
    reported = measured(Device([100.0]), **options).warnings

    assert len(reported) == len(doubts)
    assert all(doubt in warning for doubt, warning in zip(doubts, reported, strict=True))


def test_on_the_host_no_launches_are_reported():
    host = Device([0.005])
    host.clock = "host"

    (reported,) = measured(host).warnings

    assert "including reading the clock" in reported
    assert "CUDA" not in reported


def test_without_a_gpu_the_clock_of_the_host_is_used():
    result = benchmark(lambda: sum(range(1000)), iterations=5, warmup=1)

    assert result.min_s <= result.median_s <= result.max_s
    assert result.min_s > 0


def test_no_iterations_are_refused():
    with pytest.raises(ValueError, match="iterations >= 1"):
        benchmark(lambda: None, iterations=0)


class Cuda:
    """As much of `torch.cuda` as a measurement needs."""

    def __init__(self) -> None:
        self.mode = "default"
        self.device = Device([100.0])

    def is_available(self) -> bool:
        return True

    def Event(self, *, enable_timing: bool) -> Mark:  # noqa: N802  (torch's name)
        assert enable_timing
        return Mark(self.device)

    def synchronize(self) -> None:
        """Nothing is on its way."""

    def memory_allocated(self) -> int:
        return 4096

    def get_sync_debug_mode(self) -> str:
        return self.mode

    def set_sync_debug_mode(self, mode: str) -> None:
        self.mode = mode


def waits_outright(cuda: Cuda) -> None:
    cuda.synchronize()


def waits_in_passing(cuda: Cuda) -> None:
    if cuda.mode == "warn":
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)


@pytest.mark.parametrize(
    ("also", "reported"), [(waits_outright, True), (waits_in_passing, True), (lambda _: None, False)]
)
def test_on_a_gpu_a_function_that_waits_is_reported_and_torch_is_left_as_it_was(
    monkeypatch, also, reported: bool
):
    cuda = Cuda()
    before = (cuda.mode, cuda.synchronize)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))

    def fn() -> None:
        cuda.device.work()
        also(cuda)

    result = benchmark(fn, iterations=3, warmup=1)

    assert (result.clock, result.median_s) == ("cuda", pytest.approx(0.1))
    assert ("function synchronizes" in " ".join(result.warnings)) is reported
    assert (cuda.mode, cuda.synchronize) == before


_TIME_TORCH = """
import torch
from perfd import hook
a = torch.ones(64, 64)
result = hook.benchmark(lambda: a @ a, iterations=5)
assert result.clock == ("cuda" if torch.cuda.is_available() else "host")
assert result.median_s > 0
"""


@pytest.mark.system
@pytest.mark.skipif(
    not PYTHON and not os.environ.get("CI"),
    reason="PERFD_TORCH_PYTHON does not name an interpreter with PyTorch",
)
def test_torch_is_timed_on_its_own_device():
    assert PYTHON, "PERFD_TORCH_PYTHON must name an interpreter with PyTorch; .ci/run makes one"
    root = Path(perfd.__file__).parent.parent
    # That interpreter has no perfd, and the hook needs nothing of what perfd needs.
    timed = subprocess.run(
        [PYTHON, "-c", _TIME_TORCH],
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
        capture_output=True,
    )
    assert timed.returncode == 0, timed.stderr.decode()
