"""Mutated inputs: a reader refuses them in its own words, whatever they are."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.capture_targets import kineto_trace
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import targets
from tests.support.examples import examples

TARGETS = targets()


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_reads_its_own_corpus(name):
    for data in TARGETS[name].corpus:
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_a_reader_raises_nothing_but_its_own_refusals(name, data):
    target = TARGETS[name]
    chance = data.draw(st.randoms(use_true_random=False))
    changed = mutated(data.draw(st.sampled_from(target.corpus)), chance, target.corpus)
    with contextlib.suppress(*target.refusals):
        target.run(changed)


# Inputs that a fuzzer found, each as small as it can be.
FOUND = [
    ("training_log", b"[rank" + b"1" * 5000 + b"]: [default0]: iteration 5/ 10 | x: 1 |\n"),
    ("training_log", b"iteration " + b"9" * 60_000 + b"/ 10 | elapsed time per iteration (ms): 1 |\n"),
    ("training_log", b"iteration" + b" " * 60_000 + b"\n"),
    ("training_log", b"step: 500\ntokens seen: 163840001e999\ncurrent step time: 1.254\n"),
    ("queried_series", b'{"data": {"resultType": ' + b"[" * 100_000),
    ("hlo", b"%d = f32[" + b"1" * 5000 + b"] dot(f32[8] %a)"),
    ("hlo", b"%d = f32[8,8] dot(f32[8,8] %a, f32[8,8] %b), lhs_contracting_dims={" + b"1" * 5000 + b"}"),
    ("hlo", b"%d = f32[8,8]{1,\x1d0} dot(f32[8,8] %a, f32[8,8] %b), lhs_contracting_dims={1}"),
    ("hlo", "%d = f32[8]{²} dot(f32[8] %a)".encode()),
    ("flight_recorder", b'{"entries": ["\xd9\xcb"]}'),
    ("flight_recorder", b'{"entries": ' + b"[" * 100_000),
    ("inspector", b'{"coll_perf": ' + b"[" * 60_000 + b"}\n"),
    ("trace", b'{"traceEvents": [{"ph": "X", "pid": 18446744073709551616, "tid": 1, "ts": 1, "dur": 1}]}'),
    ("kineto", kineto_trace().replace(b"ProfilerStep#1", b"ProfilerStep#" + b"9" * 5000)),
    ("kineto", kineto_trace().replace(b'"rank": 0', b'"rank": 5')),
    ("rules", b"groups: [{name: g, rules: [{alert: A, expr: up, for: " + b"9" * 400 + b"d}]}]"),
    ("rules", b"groups: " + b"[" * 3000),
    (
        "bench_serving",
        b'{"completed": 1, "duration": 1e-320, "total_input_tokens": 65536, "total_output_tokens": 1e308}\n',
    ),
    ("evaluation", b'label_replace(up, "a", "$' + b"9" * 5000 + b'", "job", "(.*)")'),
    ("recording", b'{"format": 1, "name": "\x9e"}'),
    ("recording", b'{"format": 1, "streams": [{"node": "n", "kind": "x", "path": "' + b"a" * 300 + b'"}]}'),
    ("serving_log", b"[2026-01-01|00:00:00|core] INFO TTFT: 1.2.3 ms (p50: 1..0 ms)"),
]


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_once_is_refused(name, data):
    with contextlib.suppress(*TARGETS[name].refusals):
        TARGETS[name].run(data)


def test_one_bad_line_of_a_log_costs_that_line():
    log = next(data for data in TARGETS["training_log"].corpus if b"iteration" in data)
    bad = b"[rank" + b"1" * 5000 + b"]: [default0]: iteration 5/ 10 | x: 1 |\n" + b"9" * 5000 + b"\n"
    run = TARGETS["training_log"].run
    assert len(run(log)) > 1
    assert len(run(bad + log)) == len(run(log))
