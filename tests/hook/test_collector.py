"""The agent's end of the hook: untrusted datagrams become phases by rank, and a culprit becomes known."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.hook import SPEC
from perfd_collectors.hook.collector import HookOptions
from perfd_collectors.hook.datagrams import description_of, parse_message, records_of
from perfd_collectors.hook.sender_auth import SenderAuth

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.hook import StepTimer
from perfd.model import JobDescription, SampleTable, StepPhases, TrainingStep
from perfd.testing.collector_contract import check_collector, check_unavailable


def message(rank: int = 0, step: int = 7, **fields) -> bytes:
    content = {
        "v": 1,
        "job": None,
        "rank": rank,
        "world_size": 4,
        "layout": {},
        "report_steps": False,
        "clock": "cuda",
        "step": step,
        "unix_ns": 10**18,
        "step_s": 0.5,
        "phases": {"forward": 0.1, "backward": 0.2},
        "dropped": 0,
    }
    return json.dumps(content | fields).encode()


def settings() -> Settings:
    return Settings(node="n", job="train", clock=VirtualClock(10**18))


def test_ranks_of_one_step_are_one_block():
    parsed = [parse_message(message(rank, phases={"forward": 0.1 + rank})) for rank in (0, 2)]

    (block,) = records_of([one for one in parsed if one], "train")

    assert isinstance(block, StepPhases)
    assert (block.job, block.step) == ("train", 7)
    assert block.phases["forward"].by_rank == {0: 0.1, 2: 2.1}


def test_steps_are_reported_by_rank_0_and_only_where_the_job_asks_for_it():
    def reported(**fields):
        parsed = parse_message(message(**fields))
        return [record for record in records_of([parsed], "train") if isinstance(record, TrainingStep)]

    (step,) = reported(report_steps=True)
    assert (step.step, step.step_time_s, step.time_unix_ns) == (7, 0.5, 10**18 + 500_000_000)
    assert reported(report_steps=True, rank=1) == reported() == []


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"garbage",
        b"[]",
        message()[:-1],
        message(v=2),
        message(rank=-1),
        message(rank=4),
        message(step=-1),
        message(step_s=-1.0),
        message(step_s=1e9),
        message(phases={"f": -0.1}),
        message(phases={"x" * 65: 0.1}),
        message(phases={str(n): 0.1 for n in range(65)}),
        message(layout={"tp": 0}),
        message(job=""),
        message(unix_ns=0),
        message(world_size=1 << 30),
    ],
)
def test_what_is_not_sound_is_no_message(bad: bytes):
    assert parse_message(bad) is None


@given(st.binary(max_size=300))
def test_any_datagram_is_read_or_dropped(data: bytes):
    parse_message(data)


@given(st.integers(0, len(message()) - 1))
def test_a_cut_datagram_is_dropped(cut: int):
    assert parse_message(message()[:cut]) is None


def test_a_real_timer_is_received_by_the_real_collector(tmp_path: Path):
    options = HookOptions(listen_s=0.0, socket=str(tmp_path / "hook.sock"))
    collector = SPEC.create(options, settings())
    timer = StepTimer(
        rank=1,
        world_size=4,
        layout={"dp": 4},
        warmup_steps=0,
        report_steps=True,
        socket_path=options.socket,
    )
    for _ in range(3):
        with timer.step(), timer.phase("forward"):
            pass

    records = collector.collect()

    assert [type(record) for record in records] == [JobDescription, StepPhases, StepPhases, SampleTable]
    assert records[0].parallel.dp == 4
    assert records[1].phases["forward"].by_rank.keys() == {1}
    timer.close()
    collector.close()


def test_a_job_that_starts_again_with_another_layout_is_described_again(tmp_path: Path):
    path = tmp_path / "hook.sock"
    collector = SPEC.create(HookOptions(listen_s=0.0, socket=str(path)), settings())

    def described(rank: int, world_size: int, **sizes: int) -> list[tuple[int | None, int | None]]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(path))
            sender.send(message(rank=rank, world_size=world_size, layout=sizes, report_steps=True))
        reported = [record for record in collector.collect() if isinstance(record, JobDescription)]
        return [(record.parallel.world_size, record.parallel.dp) for record in reported]

    assert described(1, 4, dp=4) == [(4, 4)]
    assert described(2, 4, dp=4) == []
    # A rank that contradicts the first one does not make another job of it.
    assert described(2, 4, dp=2) == []
    assert described(0, 4, dp=4) == []
    assert described(0, 2, dp=2) == [(2, 2)]
    assert described(1, 2, dp=2) == []
    collector.close()


def test_the_collector_keeps_the_contract(tmp_path: Path):
    path = tmp_path / "hook.sock"

    def send() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(path))
            sender.send(message())
            sender.send(b"garbage")

    records = check_collector(
        SPEC, settings(), options=HookOptions(listen_s=0.0, socket=str(path)), between=send
    )

    assert [type(record) for record in records] == [StepPhases, SampleTable] * 2
    assert not path.exists()


def test_a_socket_that_was_left_behind_is_taken_over_and_a_live_one_is_not(tmp_path: Path):
    options = HookOptions(listen_s=0.0, socket=str(tmp_path / "hook.sock"))
    left = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.bind(options.socket or "")
    left.close()

    collector = SPEC.create(options, settings())

    assert "Cannot listen" in check_unavailable(SPEC, settings(), options=options)
    collector.close()


def test_a_place_that_cannot_be_written_says_what_to_do(tmp_path: Path):
    options = HookOptions(listen_s=0.0, socket=str(tmp_path / "no" / "hook.sock"))

    assert "PERFD_HOOK_SOCKET" in check_unavailable(SPEC, settings(), options=options)


def test_a_file_of_somebody_is_not_removed(tmp_path: Path):
    path = tmp_path / "hook.sock"
    path.write_text("precious")

    check_unavailable(SPEC, settings(), options=HookOptions(listen_s=0.0, socket=str(path)))

    assert path.read_text() == "precious"


def test_the_listeners_own_user_is_kept_out_by_nobody_who_was_first() -> None:
    speakers = SenderAuth(own_uid=1000)

    assert speakers.accept("job", 2000, 0.0)
    assert speakers.accept("job", 1000, 1.0)
    assert not speakers.accept("job", 2000, 2.0)
    assert speakers.accept("job", 1000, 3.0)
    assert speakers.accept("other", 2000, 4.0)


def test_a_job_belongs_to_the_user_who_reported_first_until_nothing_came_for_a_minute():
    speakers = SenderAuth(own_uid=0)
    assert speakers.accept("train", 1000, 0.0)
    assert not speakers.accept("train", 1001, 1.0)
    assert speakers.accept("other", 1001, 1.0)
    assert speakers.accept("train", 1000, 50.0)
    # What is not accepted keeps nobody waiting.
    assert not speakers.accept("train", 1001, 100.0)
    assert speakers.accept("train", 1001, 111.0)
    assert not speakers.accept("train", 1000, 112.0)


def test_endless_jobs_take_no_endless_memory_and_make_room_again():
    speakers = SenderAuth(own_uid=0)
    accepted = [speakers.accept(f"job{number}", 1000, 0.0) for number in range(2000)]
    assert accepted == [True] * 1024 + [False] * 976
    assert speakers.accept("job0", 1000, 1.0)
    assert speakers.accept("new", 1000, 61.5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may send as somebody else")
def test_datagrams_of_another_user_are_dropped_and_counted(tmp_path):
    path = tmp_path / "hook.sock"
    looked = settings()
    looked.local_jobs.replace({})
    collector = SPEC.create(HookOptions(socket=str(path), listen_s=0.0), looked)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(path))

        def send(rank: int, uid: int) -> None:
            sent_by = struct.pack("@iII", os.getpid(), uid, uid)
            credentials = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, sent_by)
            sender.sendmsg([message(rank)], [credentials])

        send(0, uid=1000)
        send(1, uid=1001)
        send(2, uid=1000)
        sender.send(b"garbage")
        phases, counts = collector.collect()
        assert collector.collect() == []
    collector.close()

    assert isinstance(phases, StepPhases)
    assert sorted(phases.phases["forward"].by_rank) == [0, 2]
    assert isinstance(counts, SampleTable)
    assert counts.columns == {"hook_unsound_messages": [1.0], "hook_foreign_messages": [1.0]}


@pytest.mark.parametrize(
    ("datagram", "read"),
    [(b"garbage", 1000), (b"x" * 60_000, 140), (message(), 10_000), (message() + b" " * 50_000, 167)],
)
def test_a_collect_ends_while_a_user_floods_the_socket(datagram, read, tmp_path):
    """Else one user would keep the agent busy, and the steps of all others from it."""
    path = tmp_path / "hook.sock"
    collector = SPEC.create(HookOptions(socket=str(path), listen_s=0.5), settings())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(path))
        sent = []

        def flood() -> None:
            with suppress(OSError):
                while True:
                    sender.send(datagram)
                    sent.append(1)

        thread = threading.Thread(target=flood)
        thread.start()
        collector.collect()
        # What the kernel holds of a closed socket's queue is gone: the sender fails and ends.
        collector.close()
        thread.join()
    queued = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    assert len(sent) <= read + queued + 1


def test_amounts_of_a_step_are_rates_and_the_precision_describes_the_job():
    parsed = parse_message(message(report_steps=True, samples=8, tokens=4096, flops=1e12, precision="bf16"))
    assert parsed is not None

    (step,) = (record for record in records_of([parsed], "train") if isinstance(record, TrainingStep))
    description = description_of(parsed, "train")

    assert (step.samples_per_s, step.tokens_per_s, step.flops_per_s_per_gpu) == (16.0, 8192.0, 2e12)
    assert description is not None
    assert (description.precision, description.logged_flops_convention) == ("bf16", "perfd.hook")


@pytest.mark.parametrize("amount", [{"tokens": -1}, {"flops": 1e30}, {"samples": 0}, {"precision": "int3"}])
def test_amounts_that_cannot_be_are_no_message(amount: dict[str, object]):
    assert parse_message(message(**amount)) is None
