"""Logs of pods that processes without rights parse, one per namespace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from perfd_collectors.pods import PodsCollector, PodsOptions
from perfd_collectors.pods.pod_parsers import JobPieces, LogFormat, LogPiece, SandboxedParsers
from pods.node_logs import ContainerFolder, pod
from training_log.logs import dump, iteration

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import ConfigError, SandboxError
from perfd.model import EventKind, LogProgress, Record, TrainingStep

NOW_NS = 1_777_629_600 * 10**9
LINE = b"2026-05-01T10:00:00Z stdout F "


def settings(*, sandboxed: bool) -> Settings:
    return Settings(node="node0", job="default", clock=VirtualClock(NOW_NS), sandboxed=sandboxed)


def options(root: Path) -> PodsOptions:
    return PodsOptions(directory=str(root), api=False)


def steps(records: Sequence[Record]) -> list[tuple[str, int]]:
    return [(record.job, record.step) for record in records if isinstance(record, TrainingStep)]


def container(root: Path, name: str, namespace: str, number: int) -> ContainerFolder:
    return ContainerFolder(pod(root, name, namespace, number) / "train")


def test_its_records_are_those_of_a_parser_in_the_agent(tmp_path):
    read = []
    for sandboxed in (False, True):
        root = tmp_path / str(sandboxed)
        log = container(root, "pretrain", "research", 0)
        log.prints(dump() + iteration(1) + iteration(2))
        with closing(PodsCollector(options(root), settings(sandboxed=sandboxed))) as collector:
            records = list(collector.collect())
            log.restarts()
            log.prints(iteration(3))
            records += collector.collect()
            records += collector.collect()
        read.append(records)
    inside, sandboxed = read
    assert sandboxed == inside
    assert [step for _, step in steps(sandboxed)] == [1, 2, 3]
    assert any(getattr(record, "kind", None) is EventKind.RESTARTED for record in sandboxed)


def test_a_process_that_ended_costs_its_namespace_thirty_seconds_and_no_step(tmp_path):
    logs = {
        name: container(tmp_path, "pretrain", name, number) for number, name in enumerate(("blue", "red"))
    }
    for log in logs.values():
        log.prints(dump() + iteration(1))
    clock = VirtualClock(NOW_NS)
    with closing(PodsCollector(options(tmp_path), replace(settings(sandboxed=True), clock=clock))) as pods:
        first = steps(pods.collect())
        blue = next(job for job, _ in first if job.startswith("blue/"))
        red = next(job for job, _ in first if job.startswith("red/"))
        assert len({blue, red}) == len(first) == 2
        sandboxes = pods._parsers._sandboxes
        os.kill(sandboxes["blue"].pid, 9)
        for log in logs.values():
            log.prints(iteration(2))
        assert steps(pods.collect()) == [(red, 2)]
        assert steps(pods.collect()) == []
        clock.advance(30.0)
        assert steps(pods.collect()) == [(blue, 1), (blue, 2)]
        assert sandboxes["blue"].pid != sandboxes["red"].pid


def test_a_process_has_records_of_the_job_that_it_was_asked_about_only(monkeypatch):
    with closing(SandboxedParsers(LogFormat(), VirtualClock(NOW_NS))) as parsers:
        new = JobPieces(
            job="red/pretrain",
            now_unix_ns=NOW_NS,
            containers=["a/b"],
            pieces=[LogPiece(container="a/b", data=b"".join(LINE + line + b"\n" for line in _LINES))],
        )
        assert {type(record) for record in parsers.records(new)} >= {TrainingStep, LogProgress}
        # What another job's records look like, from a process that was taken over.
        answer = parsers._sandboxes["red"].ask
        monkeypatch.setattr(
            type(parsers._sandboxes["red"]),
            "ask",
            lambda _, message: answer(message).replace(b"red/pretrain", b"blue/trainer"),
        )
        assert parsers.records(new) == []


def test_the_process_ends_with_the_last_job_of_its_namespace():
    with closing(SandboxedParsers(LogFormat(), VirtualClock(NOW_NS))) as parsers:
        piece = LogPiece(container="a/b", data=LINE + b"hello\n")
        for job in ("red/one", "red/two"):
            parsers.records(JobPieces(job=job, now_unix_ns=NOW_NS, containers=["a/b"], pieces=[piece]))
        process = parsers._sandboxes["red"]
        parsers.forget("red/one")
        assert process._process.poll() is None
        parsers.forget("red/two")
        assert process._process.poll() is not None


def test_a_pattern_that_is_none_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="not a regular expression"):
        PodsCollector(PodsOptions(directory=str(tmp_path), patterns=("(",)), settings(sandboxed=True))


def test_logs_wait_while_there_is_no_process(monkeypatch):
    monkeypatch.setattr("perfd_collectors.pods.pod_parsers._READER", "no_such_module:reader")
    with closing(SandboxedParsers(LogFormat(), VirtualClock(NOW_NS))) as parsers:
        parsers.ready("red/one")
        piece = LogPiece(container="a/b", data=b"x")
        with pytest.raises(SandboxError, match="ended with 1"):
            parsers.records(JobPieces(job="red/one", now_unix_ns=NOW_NS, containers=["a/b"], pieces=[piece]))
        with pytest.raises(SandboxError, match="ended with 1"):
            parsers.ready("red/one")
        parsers.ready("blue/one")


_LINES = (iteration(1) + iteration(2)).encode().splitlines()
