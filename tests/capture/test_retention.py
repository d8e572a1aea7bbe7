"""Old captures leave: by time that was watched, told before they go, and never what is in use."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from capture.conftest import request
from capture.test_end_to_end import make_system, node  # noqa: F401  (fixtures)
from hypothesis import given
from hypothesis import strategies as st

from perfd.agent.agent import Agent
from perfd.agent.spool.spool import Spool
from perfd.capture.node.artifact_sharing import FolderSharing
from perfd.capture.node.capture_executor import CaptureExecutor
from perfd.capture.node.capture_storage import CaptureRecord, CaptureStore
from perfd.capture.node.job_guards import JobProgress
from perfd.capture.node.read_lock import MARK, reading
from perfd.capture.node.retention import DAY_S, FolderWatch, RetentionLedger, expired, keep_s, looked
from perfd.capture.node.shared_folder import SharedFolder
from perfd.capture.redact.redaction import can_be_redacted
from perfd.cli import main
from perfd.clock import SystemClock
from perfd.config import AgentCaptureConfig, AgentConfig
from perfd.errors import ConfigError

KEEP_S = 30 * DAY_S
DAMAGED = (b'{"watched_s": -5, "seen_s": {"c": 9e99}}', b'{"seen_s": 1}')
IN_2038_S = 2**31


def watch(directory, who="a"):
    return FolderWatch(directory, KEEP_S, who=who, option="capture.retention_days")


@given(st.lists(st.tuples(st.floats(0, 100 * DAY_S), st.sets(st.sampled_from("abc"))), max_size=12))
def test_a_capture_leaves_exactly_when_it_was_watched_for_so_long(looks):
    ledger, since_s = RetentionLedger(), {}
    for passed_s, there in looks:
        ledger = looked(replace(ledger, watched_s=ledger.watched_s + passed_s), there)
        since_s = {name: since_s.get(name, ledger.watched_s) for name in there}
        old = {name for name, seen_s in since_s.items() if ledger.watched_s - seen_s >= KEEP_S}
        assert set(expired(ledger, KEEP_S)) == old


def test_the_oldest_leave_first(tmp_path):
    watching = watch(tmp_path)
    assert watching.look(["b"], 0) == []
    assert watching.look(["b", "a"], 10) == []
    assert watching.look(["b", "a"], KEEP_S) == ["b"]
    assert watching.look(["b", "a"], KEEP_S + 10) == ["b", "a"]


def test_an_agent_that_starts_again_goes_on_counting_and_time_without_agents_does_not_count(tmp_path):
    watch(tmp_path).look(["c"], 5)
    first = watch(tmp_path)
    first.look(["c"], 1000)
    first.look(["c"], 1000 + KEEP_S - 1)
    second = watch(tmp_path)
    # Its machine was started again: the clock that never goes back begins anew.
    assert second.look(["c"], 10**9) == []
    assert second.look(["c"], 10**9 + 1) == ["c"]


def test_an_hour_that_two_agents_watch_counts_once(tmp_path):
    one, two = watch(tmp_path, "one"), watch(tmp_path, "two")
    for hour in range(29 * 24):
        assert one.look(["c"], hour * 3600) == []
        assert two.look(["c"], 7 + hour * 3600) == []
    assert one.look(["c"], KEEP_S) == ["c"]


@given(st.binary(max_size=40) | st.sampled_from(DAMAGED))
def test_a_ledger_that_is_damaged_or_lost_removes_nothing(tmp_path_factory, content):
    directory = tmp_path_factory.mktemp("captures")
    (directory / ".perfd-retention.json").write_bytes(content)
    watching = watch(directory)
    assert watching.look(["c"], 0) == []
    assert watching.look(["c"], KEEP_S - 1) == []
    assert watching.look(["c"], KEEP_S) == ["c"]


def test_a_disk_that_takes_no_ledger_keeps_no_old_capture(tmp_path):
    first = watch(tmp_path)
    first.look(["c"], 0)
    # As on a full disk: what cannot be written is still counted, and what is too old goes.
    (tmp_path / ".perfd-retention.a.new").mkdir()
    assert first.look(["c"], KEEP_S - 1) == []
    assert first.look(["c"], KEEP_S) == ["c"]


def test_captures_are_kept_for_an_hour_at_least():
    assert keep_s(None, "x") is None
    assert keep_s(1, "x") == DAY_S
    for days in (0.0, 0.01, -3.0, float("nan")):
        with pytest.raises(ConfigError, match=r"x: it must be at least an hour"):
            keep_s(days, "x")


def test_an_agent_that_is_ordered_to_keep_nothing_confirms_and_releases_its_spool(tmp_path):
    config = AgentConfig(listen=None, capture=AgentCaptureConfig(retention_days=0))
    with pytest.raises(ConfigError, match=r"capture\.retention_days"):
        Agent(config, node="n", spool_directory=tmp_path, tasks=[])
    Spool(tmp_path, max_bytes=1000).close()


class Reported:
    """Hears what is removed, and looks whether it is still there then."""

    def __init__(self):
        self.of = {}

    def __call__(self, capture_id, paths, why):
        assert all(path.exists() for path in paths), "told before it is done"
        self.of[capture_id] = ({path.name for path in paths}, why)


@pytest.fixture
def store(tmp_path):
    return CaptureStore(tmp_path / "captures", max_bytes=10**6, min_free_bytes=0)


def keep(store, capture_id, *, is_open=False):
    folder = store.create(CaptureRecord(request=request(capture_id), open=is_open))
    (folder / "rank0.sqlite").write_text("x")
    return folder


def test_old_captures_are_removed_and_reported_but_not_open_ones_nor_what_is_not_perfds(store):
    folder = keep(store, "old")
    keep(store, "open", is_open=True)
    (folder.parent / "thesis").mkdir()
    (folder.parent / "thesis" / "thesis.tex").touch()
    watching, reported = watch(folder.parent), Reported()
    store.remove_old(watching, reported, 0)
    store.remove_old(watching, reported, KEEP_S - 1)
    assert not reported.of
    keep(store, "new")
    store.remove_old(watching, reported, KEEP_S)
    assert reported.of == {
        "old": ({"capture.json", "rank0.sqlite"}, "Removed after 30 days (capture.retention_days).")
    }
    left = {path.name for path in folder.parent.iterdir() if path.is_dir()}
    assert left == {"new", "open", "thesis"}


def test_clocks_that_jump_and_files_from_the_future_or_1970_remove_nothing(store):
    folder = keep(store, "c1")
    watching, reported = watch(folder.parent), Reported()
    for unix_s in (0, IN_2038_S, 1):
        for path in (folder, *folder.iterdir()):
            os.utime(path, (unix_s, unix_s))
        store.remove_old(watching, reported, 60)
    assert not reported.of


def test_what_is_being_read_stays_until_that_is_over(store):
    folder = keep(store, "c1")
    watching, reported = watch(folder.parent), Reported()
    store.remove_old(watching, reported, 0)
    with reading(folder):
        store.remove_old(watching, reported, KEEP_S)
        assert (folder / "rank0.sqlite").exists()
    assert not reported.of
    store.remove_old(watching, reported, KEEP_S)
    assert not folder.exists()


def test_nothing_goes_that_cannot_be_reported(store):
    folder = keep(store, "c1")
    watching = watch(folder.parent)
    store.remove_old(watching, Reported(), 0)

    def deaf(capture_id, paths, why):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        store.remove_old(watching, deaf, KEEP_S)
    assert (folder / "rank0.sqlite").exists()


def test_without_a_folder_nothing_is_made(store, tmp_path):
    store.remove_old(watch(tmp_path / "captures"), Reported(), 0)
    assert not (tmp_path / "captures").exists()


@pytest.fixture
def share(tmp_path):
    directory = tmp_path / "share"
    for capture_id in ("c1", "c2"):
        folder = directory / capture_id
        folder.mkdir(parents=True)
        (folder / MARK).touch()
        (folder / "n7-rank0.sqlite").write_text("x")
    (directory / "mine").mkdir()
    (directory / "mine" / "notes").touch()
    return directory


def test_captures_of_all_nodes_leave_the_shared_folder_when_they_are_old(share):
    reported, watching = Reported(), watch(share)
    folder = SharedFolder(directory=share, node="n1", report_removed=reported)
    folder.remove_old(watching, 0)
    with reading(share / "c2"):
        folder.remove_old(watching, KEEP_S)
    assert reported.of == {"c1": ({"n7-rank0.sqlite"}, "Removed after 30 days (capture.retention_days).")}
    folder.remove_old(watching, KEEP_S)
    assert sorted(path.name for path in share.iterdir() if path.is_dir()) == ["mine"]


def test_a_capture_that_makes_room_for_a_newer_one_is_reported_too(share, tmp_path):
    (tmp_path / "session.qdstrm").write_text("xx")
    reported = Reported()
    folder = SharedFolder(directory=share, node="n1", unredacted=True, max_bytes=3, report_removed=reported)
    assert not can_be_redacted(tmp_path / "session.qdstrm")
    folder.put("c3", tmp_path / "session.qdstrm")
    assert reported.of == {
        "c1": ({"n7-rank0.sqlite"}, "Removed for newer captures (capture.share_max_bytes).")
    }


def test_a_folder_that_hangs_holds_up_neither_the_executor_nor_is_asked_twice(share):
    asked, awake = [], threading.Event()

    class Hanging:
        def look(self, there, monotonic_s):
            asked.append(there)
            awake.wait()
            return []

    sharing = FolderSharing(SharedFolder(directory=share, node="n1"), timeout_s=0.1, watch=Hanging())
    sharing.remove_old(0)
    sharing.remove_old(1)
    try:
        assert "capture.share_timeout_s" in sharing.copy("c3", [], lambda: False)[1]
    finally:
        awake.set()
    assert len(asked) == 1


def test_an_executor_cleans_up_while_it_has_nothing_to_do(store):
    looks = threading.Semaphore(0)
    executor = CaptureExecutor(
        tools=[],
        store=store,
        clock=SystemClock(),
        send_status=lambda status: None,
        progress=lambda job: JobProgress(),
        remove_old=looks.release,
        look_every_s=0.001,
    )
    executor.start()
    try:
        for _ in range(3):
            assert looks.acquire(timeout=45)
    finally:
        executor.stop()


def test_history_says_of_each_file_that_it_is_gone_and_why_also_after_a_restart(
    node,  # noqa: F811
    make_system,  # noqa: F811
    capsys,
):
    system = make_system()
    aggregator = system.aggregator()
    share = node.directory / "share"
    agent = system.agent(share_directory=str(share))
    capture = system.until(aggregator, lambda capture: capture["state"] == "done")
    files = [Path(file["path"]) for who in capture["ranks"] for file in who["files"]]
    assert all(path.exists() for path in files)
    agent.stop()
    for directory in (node.captures, share):
        ledger = {"watched_s": 31 * DAY_S, "seen_s": {capture["id"]: 0.0}}
        (directory / ".perfd-retention.json").write_text(json.dumps(ledger))
    system.agent(share_directory=str(share))
    gone = system.until(
        aggregator,
        lambda known: (
            known["id"] == capture["id"]
            and all(file["removed"] for who in known["ranks"] for file in who["files"])
        ),
    )
    node.until(lambda: not any(path.exists() for path in files))
    assert gone["state"] == "done"
    reasons = {file["removed"]["reason"] for who in gone["ranks"] for file in who["files"]}
    assert reasons == {
        "Removed after 30 days (capture.retention_days).",
        "Removed after 30 days (capture.share_retention_days).",
    }
    aggregator.stop()
    again = system.aggregator()
    capsys.readouterr()
    assert main(["capture", "show", capture["id"], "--aggregator", again.http_address]) == 0
    shown = capsys.readouterr().out
    assert shown.count("gone since") == len(files)
    assert "MiB" not in shown
