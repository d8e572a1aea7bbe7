"""What was complained of: alike complaints together, nothing else that happened, and never too many."""

from __future__ import annotations

from perfd.analysis.hang.error_events import troubles
from perfd.model import Event, EventKind


def event(message: str, at_s: float = 1.0, kind: EventKind = EventKind.LOG_ERROR, **fields) -> Event:
    return Event(kind=kind, time_unix_ns=round(1e9 * at_s), message=message, **fields)


def test_complaints_that_differ_in_numbers_only_are_one_of_several_ranks():
    found = troubles(
        [
            event("NCCL's watchdog: ALLREDUCE ran for 600.07 s.", 9.0, rank=3, step=41),
            event("NCCL's watchdog: ALLREDUCE ran for 600.02 s.", 8.0, rank=1, step=40),
            event("NCCL's watchdog: ALLREDUCE ran for 600.09 s.", 9.5, rank=1, step=41),
        ]
    )

    (one,) = found
    assert (one.message, one.count, one.ranks, one.step) == (
        "NCCL's watchdog: ALLREDUCE ran for 600.02 s.", 3, (1, 3), 40,
    )  # fmt: skip
    assert (one.first_unix_s, one.last_unix_s) == (8.0, 9.5)


def test_what_is_no_complaint_is_left_out_and_the_rest_is_in_the_order_of_its_beginning():
    found = troubles(
        [
            event("Connection reset by peer", 5.0, EventKind.NCCL_WARNING),
            event("saved", 4.0, EventKind.CHECKPOINT),
            event("GPU is lost", 3.0, EventKind.HARDWARE_ERROR),
        ]
    )

    assert [(one.kind, one.message) for one in found] == [
        (EventKind.HARDWARE_ERROR, "GPU is lost"),
        (EventKind.NCCL_WARNING, "Connection reset by peer"),
    ]


def test_of_very_many_the_newest_are_kept():
    found = troubles(event("error " + "x" * number, float(number)) for number in range(100))

    assert [one.first_unix_s for one in found] == list(range(84, 100))


def test_advice_about_a_release_of_nccl_that_need_not_run_is_left_out():
    earlier = (
        "NCCL reports GPU times of other operations: some overlap that cannot. Durations are unknown. NCCL"
        " 2.32 does so after a Broadcast: try NCCL_ALLGATHERV_ENABLE=0, or another release."
    )
    now = "NCCL reports GPU times of other kernels for Broadcast on a communicator. NCCL 2.32 does so."

    found = troubles(
        [event(earlier, 1.0, EventKind.NCCL_TIMES_WRONG), event(now, 2.0, EventKind.NCCL_TIMES_WRONG)]
    )

    assert [one.message for one in found] == [
        "NCCL reports GPU times of other operations: some overlap that cannot. Durations are unknown.",
        now,
    ]
