"""Memory in traces of PyTorch's profiler, by its `[memory]` events and the spans of the host around them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.cli import main
from perfd.errors import TraceError
from perfd.trace.memory.allocation_history import MAX_LEVELS, MemoryUse
from perfd.trace.memory.memory_files import memory_of
from perfd.trace.memory.memory_findings import memory_findings, places, sizes_by_use

MB = 1_000_000
PYTHON = os.environ.get("PERFD_TORCH_PYTHON", "")


class Profile:
    """Events of a trace; memory is counted as the allocator does."""

    def __init__(self, before=0, reserved=100 * MB, device=0):
        self.events = []
        self.allocated, self.reserved, self.device = before, reserved, device

    def span(self, category, name, start, end, thread=1, **args):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start,
             "dur": end - start, "args": args}
        )  # fmt: skip

    def change(self, time, size, address, thread=1, name="[memory]", **args):
        if name == "[memory]":
            self.allocated += size
        known = {"Bytes": size, "Addr": address, "Device Id": self.device, "Device Type": 1}
        totals = {"Total Allocated": self.allocated, "Total Reserved": self.reserved}
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": name, "pid": 1, "tid": thread,
             "ts": time, "args": {**totals, **known, **args}}
        )  # fmt: skip

    def write(self, folder, name="trace.json"):
        path = folder / name
        content = json.dumps({"schemaVersion": 1, "traceEvents": self.events}).encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path


def step(profile):
    """A forward pass, a backward pass on a thread of its own, and an optimizer step."""
    profile.span("python_function", "job/train.py(30): step", 0, 100)
    profile.span("python_function", "nn.Module: Linear_0", 5, 20)
    profile.span("python_function", "torch/nn/modules/linear.py(130): forward", 6, 19)
    profile.span("cpu_op", "aten::linear", 8, 12)
    profile.change(10, 40 * MB, 0xA)
    profile.span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 30, 50, thread=2)
    profile.change(31, 5 * MB, 0xB, thread=2)
    profile.change(35, 7 * MB, 0xC, thread=2)
    profile.change(40, -7 * MB, 0xC, thread=2)
    profile.change(45, -40 * MB, 0xA, thread=2)
    profile.span("user_annotation", "Optimizer.step#AdamW.step", 60, 70)
    profile.change(65, 3 * MB, 0xD)
    profile.span("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", 80, 90)
    profile.change(85, -5 * MB, 0xB)


def test_what_is_in_use_at_the_peak_is_known_by_use_and_line(tmp_path):
    profile = Profile(before=20 * MB)
    step(profile)
    (history,) = memory_of(profile.write(tmp_path))

    assert history.peak_bytes == (20 + 40 + 5 + 7) * MB
    assert history.peak_time_us == 35
    assert (history.allocated_bytes, history.reserved_bytes) == (23 * MB, 100 * MB)
    assert dict(sizes_by_use(history)) == {
        MemoryUse.ACTIVATIONS: 40 * MB,
        MemoryUse.UNKNOWN: 20 * MB,
        MemoryUse.GRADIENTS: 5 * MB,
        MemoryUse.BACKWARD: 7 * MB,
    }
    assert (places(history)[0].where, places(history)[0].size_bytes) == ("job/train.py:30 step", 40 * MB)
    assert [level.allocated_bytes // MB for level in history.levels] == [60, 65, 72, 65, 25, 28, 23]


def test_without_lines_operators_and_ranges_say_what_memory_is_for(tmp_path):
    profile = Profile()
    step(profile)
    profile.events = [event for event in profile.events if event["cat"] != "python_function"]
    (history,) = memory_of(profile.write(tmp_path, "trace.json.gz"))

    assert dict(sizes_by_use(history))[MemoryUse.ACTIVATIONS] == 40 * MB
    assert places(history)[0].where == "aten::linear"


def test_memory_that_was_there_before_and_is_freed_counts_once(tmp_path):
    profile = Profile(before=30 * MB)
    profile.change(10, 1 * MB, 0xA)
    profile.change(20, -10 * MB, 0xE)
    (history,) = memory_of(profile.write(tmp_path))

    assert history.peak_bytes == 31 * MB
    assert sum(allocation.size_bytes for allocation in history.at_peak) == 31 * MB


def test_what_is_reserved_and_not_in_use_at_the_peak_is_a_finding_from_its_threshold_on(tmp_path):
    profile = Profile(reserved=100 * MB)
    profile.change(10, 90 * MB, 0xA)
    (history,) = memory_of(profile.write(tmp_path))
    assert memory_findings(history)[0].evidence.startswith("At the peak 10.0 MB (10.0% of what is reserved)")

    profile.change(20, MB, 0xB)
    (history,) = memory_of(profile.write(tmp_path))
    assert not any("reserved" in finding.evidence for finding in memory_findings(history))


def test_a_failed_request_comes_first(tmp_path):
    profile = Profile(reserved=60 * MB)
    profile.change(10, 50 * MB, 0xA)
    profile.span("python_function", "job/train.py(31): big", 15, 25)
    profile.change(20, 70 * MB, 0, name="[OutOfMemory]")
    (history,) = memory_of(profile.write(tmp_path))

    first = memory_findings(history)[0].evidence
    assert first == "A request for 70.0 MB failed at job/train.py:31 big and 10.0 MB unused in pieces."


def test_each_gpu_of_a_trace_is_by_itself(tmp_path):
    one, other = Profile(device=0), Profile(device=3)
    one.change(10, MB, 0xA)
    other.change(10, 2 * MB, 0xA)
    one.events += other.events
    assert [(found.device, found.peak_bytes) for found in memory_of(one.write(tmp_path))] == [
        (0, MB),
        (3, 2 * MB),
    ]


def test_a_long_timeline_keeps_its_peak(tmp_path):
    profile = Profile()
    for at in range(3 * MAX_LEVELS):
        profile.change(10 + at, 9 * MB if at == 700 else 1, 0x1000 + at)
        profile.change(10.5 + at, -9 * MB if at == 700 else -1, 0x1000 + at)
    (history,) = memory_of(profile.write(tmp_path))
    assert len(history.levels) == MAX_LEVELS
    assert max(level.allocated_bytes for level in history.levels) == 9 * MB == history.peak_bytes


@pytest.mark.parametrize(
    ("args", "said"),
    [({"Device Type": 0}, "other than of the CPU's"), ({"Bytes": "many"}, "no changes of memory:")],
)
def test_a_trace_without_the_gpus_memory_says_how_to_record_it(tmp_path, args, said):
    profile = Profile()
    profile.change(10, MB, 0xA, **args)
    with pytest.raises(TraceError, match=said) as raised:
        memory_of(profile.write(tmp_path))
    assert "profile_memory=True" in str(raised.value)


def test_the_command_shows_several_files_and_one_object(tmp_path, capsys):
    profile = Profile(before=20 * MB)
    step(profile)
    one, other = (str(profile.write(tmp_path, f"rank-{rank}.json")) for rank in (0, 1))
    assert main(["memory", one, other]) == 0
    shown = capsys.readouterr().out
    assert shown.count("GPU 0: at most 72.0 MB in use, 100.0 MB reserved") == 2
    assert "█" in shown
    assert main(["memory", one, "--json"]) == 0
    (gpu,) = json.loads(capsys.readouterr().out)["gpus"]
    assert (gpu["file"], gpu["unused_pieces_bytes"], len(gpu["levels"])) == (one, None, 7)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), max_size=40), st.integers(0, 30))
def test_what_is_alive_at_the_peak_adds_up_to_it(tmp_path_factory, changes, before):
    profile, alive = Profile(before=before), {}
    profile.change(0, 1, 0xFFFF)
    for time, (address, size) in enumerate(changes, 1):
        freed = alive.pop(address, None)
        if freed is None:
            alive[address] = size
        profile.change(time, -freed if freed else size, address)
    (history,) = memory_of(profile.write(tmp_path_factory.mktemp("memory")))
    assert sum(allocation.size_bytes for allocation in history.at_peak) == history.peak_bytes
    assert history.allocated_bytes == before + 1 + sum(alive.values())


_JOB = """
import sys, torch
model = torch.nn.Linear(256, 1024)
optimizer = torch.optim.AdamW(model.parameters())
with torch.profiler.profile(profile_memory=True, with_stack=True) as profile:
    for _ in range(2):
        # With so many activations the peak is not within the optimizer, which has temporary values, too.
        model(torch.randn(4096, 256)).square().mean().backward()
        optimizer.step()
profile.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.system
@pytest.mark.skipif(not PYTHON, reason="PERFD_TORCH_PYTHON does not name an interpreter with PyTorch")
def test_the_real_profilers_events_have_the_fields_that_are_read(tmp_path):
    path = tmp_path / "trace.json"
    subprocess.run([PYTHON, "-c", _JOB, str(path)], check=True, capture_output=True)
    # Without a GPU the changes are of the CPU's memory, in the same form.
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        if event["name"] == "[memory]":
            event["args"] |= {"Device Type": 1, "Device Id": 0}
    path.write_text(json.dumps(content))

    (history,) = memory_of(path)
    uses = dict(sizes_by_use(history))
    parameters = (256 * 1024 + 1024) * 4
    # AdamW keeps two values for each parameter, and a count for each of the two tensors.
    assert uses[MemoryUse.OPTIMIZER] == 2 * parameters + 2 * 4
    # The gradient of the loss, which the backward pass begins with, is one number.
    assert uses[MemoryUse.GRADIENTS] == parameters + 4
