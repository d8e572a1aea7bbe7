"""Snapshots of PyTorch's allocator: two of a real job with torch's own figures, and others made by hand."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.cli import main
from perfd.errors import TraceError
from perfd.trace.memory.allocation_history import MemoryUse, replay
from perfd.trace.memory.memory_findings import memory_findings, place_of, sizes_by_use
from perfd.trace.memory.memory_snapshot import read_snapshot, snapshot_of

RECORDED = Path(__file__).parent.parent / "fixtures/memory"
"""Of a transformer with AdamW on an H200, PyTorch 2.11; the one ends with a failed allocation."""


def frames(*names):
    return [{"filename": file, "line": 1, "name": name} for file, name in (name.split(":") for name in names)]


def event(action, address, size, *stack, **more):
    return {"action": action, "addr": address, "size": size, "time_us": 7, "frames": frames(*stack), **more}


def segment(size, *blocks, **more):
    """Blocks are (size, allocated) or (size, allocated, address)."""
    entries = [
        {
            "size": block[0],
            "requested_size": block[0],
            "state": "active_allocated" if block[1] else "inactive",
            "frames": [],
            **({"address": block[2]} if len(block) > 2 else {}),
        }
        for block in blocks
    ]
    return {"device": 0, "address": 1000, "total_size": size, "blocks": entries, **more}


def history_of(segments, events, **settings):
    content = {"segments": segments, "device_traces": [events], "allocator_settings": settings}
    (memory,) = snapshot_of(pickle.dumps(content))
    return replay(memory)


@pytest.mark.parametrize("name", ["transformer-oom", "transformer-expandable"])
def test_a_real_snapshot_agrees_with_torchs_own_figures(name):
    truth = json.loads((RECORDED / f"{name}.json").read_text())
    (memory,) = read_snapshot(RECORDED / f"{name}.pickle.gz")
    history = replay(memory)
    assert history.allocated_bytes == truth["allocated"]
    assert history.reserved_bytes == truth["reserved"]
    assert history.requested_bytes == truth["requested"]
    assert history.peak_reserved_bytes == truth["max_reserved"]
    assert history.peak_bytes == pytest.approx(truth["max_allocated"], rel=0.002)
    assert sum(allocation.size_bytes for allocation in history.at_peak) == history.peak_bytes
    uses = dict(sizes_by_use(history))
    # AdamW keeps two values for each parameter, all in 32 bits.
    assert uses[MemoryUse.PARAMETERS] == truth["params"]
    assert uses[MemoryUse.OPTIMIZER] == pytest.approx(2 * truth["params"], rel=1e-4)
    assert uses[MemoryUse.ACTIVATIONS] > 2e9
    if not memory.expandable_segments:
        assert sum(history.unused_pieces_bytes) == truth["inactive_split"]


def test_the_failed_request_of_a_real_job_comes_first():
    (memory,) = read_snapshot(RECORDED / "transformer-oom.pickle.gz")
    first, second, third = (finding.evidence for finding in memory_findings(replay(memory)))
    assert first.startswith("A request for 429.5 GB failed at job/snap.py:35 <module>, with 145.6 GB free")
    assert second.startswith("879.0 MB (23.7% of what is reserved) are unused in 37 pieces")
    assert third.startswith("Activations hold 50.7% of the peak")


def test_the_peak_is_before_the_record_if_all_that_is_seen_is_freed():
    history = history_of([segment(100, (10, True))], [event("free_requested", 5, 60)])
    assert (history.peak_bytes, history.peak_time_us) == (70, None)
    assert dict(sizes_by_use(history)) == {MemoryUse.UNKNOWN: 70}


@pytest.mark.parametrize(
    ("stack", "freed_by", "use"),
    [
        (("t.py:<module>",), None, MemoryUse.PARAMETERS),
        (("x/torch/optim/adam.py:step", "t.py:<module>"), None, MemoryUse.OPTIMIZER),
        (("t.py:forward", "x/torch/nn/modules/module.py:_call_impl"), None, MemoryUse.ACTIVATIONS),
        (("x/torch/nn/functional.py:cross_entropy",), None, MemoryUse.ACTIVATIONS),
        ((), None, MemoryUse.GRADIENTS),
        ((), ("x/torch/optim/optimizer.py:zero_grad",), MemoryUse.GRADIENTS),
        ((), (), MemoryUse.BACKWARD),
        (("x/torch/nn/parallel/distributed.py:__init__",), ("t.py:f",), MemoryUse.OTHER),
        (("x/torch/distributed/fsdp/a.py:_all_gather",), None, MemoryUse.COMMUNICATION),
    ],
)
def test_what_memory_is_for_by_who_asked_for_it_and_who_freed_it(stack, freed_by, use):
    events = [event("alloc", 1000, 10, *stack)]
    left = [segment(10, (10, freed_by is None))]
    if freed_by is not None:
        events.append(event("free_requested", 1000, 10, *freed_by))
    assert dict(sizes_by_use(history_of(left, events))) == {use: 10}


def test_blocks_of_old_versions_have_no_address_and_follow_each_other():
    events = [event("alloc", 1004, 6, "t.py:forward")]
    history = history_of([segment(10, (4, False), (6, True))], events)
    assert (history.peak_bytes, dict(sizes_by_use(history))) == (6, {MemoryUse.ACTIVATIONS: 6})
    assert history.unused_pieces_bytes == [4]


@pytest.mark.parametrize(("unused", "words"), [(99, 0), (100, 1)])
def test_pieces_are_a_finding_from_the_threshold_on_unless_segments_can_grow(unused, words):
    blocks = [segment(1000, (1000 - unused, True), (unused, False))]
    found = memory_findings(history_of(blocks, []))
    assert sum("are unused" in finding.evidence for finding in found) == words
    found = memory_findings(history_of(blocks, [], expandable_segments=True))
    assert not any("are unused" in finding.evidence for finding in found)


@pytest.mark.parametrize(("asked", "suffice"), [(300, True), (301, False)])
def test_a_failed_request_that_the_pieces_would_hold_is_fragmentation(asked, suffice):
    left = [segment(1000, (700, True), (300, False))]
    failed = event("oom", 0, asked, "t.py:step", device_free=5)
    later = event("alloc", 1000, 700, "t.py:other")
    history = history_of(left, [later, failed])
    assert (history.failed[0].unused_bytes, history.failed[0].device_free_bytes) == (300, 5)
    assert ("would suffice" in memory_findings(history)[0].advice) is suffice


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1000)), max_size=60))
def test_the_peak_is_what_a_simple_count_finds(steps):
    used, most, events = {}, 0, []
    for slot, size in steps:
        if slot in used:
            events.append(event("free_requested", 1000 * (slot + 1), used.pop(slot)))
        else:
            used[slot] = size
            events.append(event("alloc", 1000 * (slot + 1), size, "t.py:forward"))
        most = max(most, sum(used.values()))
    left = [segment(9000, *((size, True, 1000 * (slot + 1)) for slot, size in used.items()))]
    history = history_of(left, events)
    assert history.peak_bytes == most
    assert sum(allocation.size_bytes for allocation in history.at_peak) == most


def test_code_of_the_job_is_named_and_pytorchs_only_where_there_is_no_other():
    history = history_of(
        [segment(10, (10, True))],
        [event("alloc", 1000, 10, "x/torch/nn/modules/linear.py:forward", "/a/b/model.py:forward")],
    )
    assert place_of(history.at_peak[0].stack) == "b/model.py:1 forward"
    assert place_of(history.at_peak[0].stack[:1]) == "modules/linear.py:1 forward"
    assert place_of(()) == "unknown"


def test_memory_of_no_size_divides_by_nothing():
    history = history_of([segment(0, (0, True))], [event("alloc", 1000, 0, "t.py:forward")])
    assert memory_findings(history) == []


class Evil:
    """Runs code when it is read by pickle itself."""

    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"segments": [Evil()]}), "not plain data"),
        (pickle.dumps([1]), "it has no segments"),
        (pickle.dumps({"segments": []}), "neither memory nor events"),
        (pickle.dumps({"segments": 3}), "it has no segments"),
        (b"PK\x03\x04", "not a snapshot"),
        (b"", "not a snapshot"),
        (gzip.compress(b"x" * 500, mtime=0)[:-9], "cut or damaged"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_a_reason_and_never_run(tmp_path, content, words, capsys):
    file = tmp_path / "memory.pickle"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read_snapshot(file)
    assert main(["memory", str(file)]) == 2
    shown = capsys.readouterr()
    assert "memory.pickle" in shown.err
    assert "run" not in shown.out


def test_the_command_prints_a_table_or_one_object(capsys):
    file = str(RECORDED / "transformer-oom.pickle.gz")
    assert main(["memory", file]) == 0
    text = capsys.readouterr().out
    assert "GPU 0: at most 4.3 GB in use, 5.8 GB reserved" in text
    assert "job/snap.py:13 forward" in text
    assert main(["memory", file, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfd.memory/1"
    (gpu,) = document["gpus"]
    assert (gpu["gpu"], gpu["reserved_bytes"], gpu["events"]) == (0, 3_716_153_344, 6747)
    assert gpu["at_peak_bytes"]["parameters"] == 433_381_376


def test_a_snapshot_without_a_record_shows_the_end(tmp_path, capsys):
    file = tmp_path / "m.pickle"
    file.write_bytes(pickle.dumps({"segments": [segment(10, (10, True))], "device_traces": [[]]}))
    assert main(["memory", str(file)]) == 0
    assert "No events were recorded" in capsys.readouterr().out
