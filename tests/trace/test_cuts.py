"""A cut or damaged trace is an error, or it reads as it would whole: it never gives a number of its own."""

from __future__ import annotations

import gzip

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.errors import TraceError
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.diagnosis.trace_json import to_json
from perfd.trace.readers.trace_files import read_traces
from tests.support.examples import examples
from tests.support.traces import COMPUTE, COPY, NCCL, NsysExport, Op, kineto, write_json


def _numbers(path) -> bytes:
    analysis = analyse(read_traces([path]))
    document = to_json(analysis, diagnose(analysis))
    for rank in document["ranks"]:
        rank.pop("file")
    return msgspec.json.encode(document)


def _numbers_or_error(path) -> bytes | None:
    try:
        return _numbers(path)
    except TraceError as error:
        if str(path) not in str(error):
            raise
        return None


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    operations = [
        Op(name, at, at + 3, launched=at - 2) for at in range(0, 60, 4) for name in (COMPUTE, NCCL, COPY)
    ]
    trace = kineto(operations, steps={1: (0, 30), 2: (30, 60)})
    export = NsysExport(folder / "n.sqlite")
    for at in range(0, 60_000, 4000):
        export.kernel(COMPUTE, at, at + 3000, launched=at - 100)
        export.kernel(NCCL, at, at + 2000, launched=at - 50)
    return {
        "json": write_json(folder / "t.json", trace),
        "json.gz": write_json(folder / "t.json.gz", trace, packed=True),
        "sqlite": export.close(),
        "sqlite.gz": _packed(folder / "n.sqlite"),
    }


def _packed(path):
    target = path.with_suffix(".sqlite.gz")
    target.write_bytes(gzip.compress(path.read_bytes()))
    return target


@pytest.mark.parametrize("kind", ["json", "json.gz", "sqlite", "sqlite.gz"])
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_cut_trace_never_invents_a_number(files, kind, data, tmp_path_factory):
    whole = files[kind].read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path_factory.mktemp("cut") / f"t.{kind}"
    path.write_bytes(whole[:cut])

    found = _numbers_or_error(path)

    assert found in {_numbers(files[kind]), None}


@pytest.mark.parametrize("kind", ["json", "json.gz", "sqlite"])
@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_any_damaged_byte_is_an_error_or_a_reading_but_never_a_crash(files, kind, data, tmp_path_factory):
    damaged = bytearray(files[kind].read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / f"t.{kind}"
    path.write_bytes(damaged)

    _numbers_or_error(path)
