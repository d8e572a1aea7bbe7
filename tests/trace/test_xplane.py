"""XLA's own file of a profile: the same operations as in the Chrome trace made of it."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from perfd.errors import TraceError
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.readers import kineto_reader
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.readers.xplane import xplane_reader
from perfd.trace.readers.xplane.message_fields import submessages
from tests.support.xplane import plane, xplane_space

SHARED = Path(os.environ.get("PERFD_SHARED", "/nowhere"), "traces", "jax-fsdp4")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(xplane_space())
    return path


def rows(trace):
    operations = trace.operations
    return [
        (trace.names[name], trace.classes[name], OperationKind(kind), int(start), int(end - start))
        for name, kind, start, end in zip(
            operations.name, operations.kind, operations.start_ns, operations.end_ns, strict=True
        )
    ]


def test_operations_have_their_names_classes_and_times_to_the_nanosecond(file):
    first, second = xplane_reader.read(file)
    assert (first.device, second.device) == (0, 1)
    assert rows(first) == [
        ("nvjet_sm90", "matmul", OperationKind.COMPUTE, 50, 1_001),
        ("kernel_9", "communication", OperationKind.COMMUNICATION, 2_050, 500),
    ]
    assert rows(second) == [("MemcpyD2D", "copy", OperationKind.MEMORY, 107, 20)]
    assert list(first.operations.correlation) == [11, 12]
    assert [(step.number, step.start_ns, step.end_ns) for step in first.steps] == [
        (0, 0, 1_000),
        (1, 1_000, 2_000),
    ]


def test_the_device_has_its_product_name(file, tmp_path):
    named = tmp_path / "named.xplane.pb"
    stats = {7: "gpu_device_name", 8: "device_vendor"}
    named.write_bytes(xplane_space(device={7: "NVIDIA H200", 8: "Nvidia"}, stats=stats))

    assert [trace.gpu for trace in read_traces([named])] == ["NVIDIA H200", "NVIDIA H200"]
    assert [trace.gpu for trace in read_traces([file])] == [None, None]


def test_it_is_recognized_by_its_name_also_compressed(file, tmp_path):
    packed = tmp_path / "packed.xplane.pb.gz"
    packed.write_bytes(gzip.compress(xplane_space()))
    for path in (file, packed):
        assert [trace.rank for trace in read_traces([path])] == [0, 1]
        assert {trace.file for trace in read_traces([path])} == {str(path)}


@pytest.mark.parametrize("kept", [1, 7, 100, -1, -300])
def test_a_file_that_is_cut_is_an_error_that_names_it(file, kept):
    file.write_bytes(xplane_space()[:kept])
    with pytest.raises(TraceError, match=r"host\.xplane\.pb: this is not an XSpace"):
        xplane_reader.read(file)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"\xff" * 64, "this is not an XSpace"),
        (b"{}", "this is not an XSpace"),
        (b"\x0b\x0b", "wire type 3"),
        (plane("/host:CPU", [], {}), "the trace has no device activity"),
    ],
)
def test_what_is_no_trace_is_an_error_that_names_it(file, content, words):
    file.write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read_traces([file])


def test_fields_that_nobody_uses_are_skipped():
    message = b"\x08\x96\x01" + b"\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\x12\x02ab" + b"\x12\x00"
    assert [(number, bytes(part)) for number, part in submessages(memoryview(message))] == [
        (2, b"ab"),
        (2, b""),
    ]


@pytest.mark.skipif(not SHARED.is_dir(), reason="PERFD_SHARED has no trace of a real job")
def test_a_real_job_has_the_same_operations_as_in_its_chrome_trace():
    pairs = zip(
        kineto_reader.read(SHARED / "jax.trace.json.gz"),
        xplane_reader.read(SHARED / "jax.xplane.pb.gz"),
        strict=True,
    )
    for chrome, own in pairs:
        assert chrome.device == own.device
        ours, theirs = (
            sorted((name, label, kind) for name, label, kind, *_ in rows(t)) for t in (own, chrome)
        )
        assert ours == theirs
        lengths = [np.sort(t.operations.end_ns - t.operations.start_ns) for t in (own, chrome)]
        assert np.abs(lengths[0] - lengths[1]).max() <= 1
