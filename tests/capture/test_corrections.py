"""What to do about a refused capture, for the reasons that the policy and the tools actually give."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from perfd.capture.policy.capture_json import correction_of, to_json
from perfd.capture.policy.capture_record import Capture, Participant
from perfd.model import CaptureState, CaptureTool


def refused(reason: str, *, job: str = "llama", profile: str = "default", node: str = "") -> Capture:
    ranks = [Participant(node=node, rank=0, state=CaptureState.REFUSED, reason=reason)] if node else []
    return Capture(
        capture_id="c1", job=job, tool=CaptureTool.NSYS, profile=profile, requested_unix_s=0.0,
        start_unix_s=0.0, max_duration_s=30.0, participants=ranks, state=CaptureState.REFUSED, reason=reason,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        (
            "Job llama was not started under `nsys launch`; start the job with `perfd run`, or nsys.",
            "perfd run --kineto -- COMMAND",
        ),
        (
            "nsys not found: install nsight-systems, set capture.nsys_path, or capture with Kineto.",
            "perfd run --kineto -- COMMAND",
        ),
        (
            "Rank 3 was started without KINETO_USE_DAEMON=1, so its PyTorch does not poll for traces.",
            "perfd run --kineto -- COMMAND",
        ),
        ("Capture c0 of this job is still running. If the alert still", "perfd capture cancel c0"),
        ("Busy: capture c0 is running on this node.", "perfd capture cancel c0"),
        ("Cooldown: Slow requested a capture of this job 5 s ago; 9 s", "perfd capture start llama"),
        ("Budget: 4 captures of this job in the last hour; the profile's", "perfd capture start llama"),
        ("No capture profile 'x'; capture_profiles has: default.", "perfd capture start llama"),
        ("The job ends in about 9 s (6 of 60 steps left at 1.5 s); a", "perfd capture start llama --steps 1"),
        ("Job llama has no rank 9, or its node is unknown.", "perfd capture start llama --ranks all"),
        ("The job saves a checkpoint after step 5; try again when it is done.", "perfd capture start llama"),
        ("gives up after 600 s: it hangs, and a profiler could", "perfd capture start llama --profile hang"),
        ("Something that nobody thought of.", "perfd doctor"),
    ],
)  # fmt: skip
def test_each_reason_has_a_command(reason: str, command: str) -> None:
    found = to_json(refused(reason, node="n1"))["correction"]
    assert found["command"] == command
    assert found["node"] == ("n1" if command == "perfd doctor" else None)


def test_a_capture_is_repeated_with_the_same_profile() -> None:
    found = correction_of(refused("Cooldown: x", job="my job", profile="slow"))
    assert found is not None
    assert shlex.split(found.command) == ["perfd", "capture", "start", "my job", "--profile", "slow"]


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("Budget: 4 captures of this job in the last hour", "--profile slow --ranks culprits+peer --steps 7"),
        ("The job only just started.", "--profile slow --ranks culprits+peer --steps 7"),
        ("No capture profile 'slow'; capture_profiles has: x.", "--ranks culprits+peer --steps 7"),
        ("The job ends in about 9 s", "--profile slow --ranks culprits+peer --steps 1"),
        ("the analysis currently names no culprits.", "--profile slow --ranks all --steps 7"),
    ],
)
def test_a_capture_again_has_the_ranks_and_steps_that_were_asked_for(reason: str, options: str) -> None:
    asked = replace(refused(reason, profile="slow"), ranks="culprits+peer", steps=7)
    found = correction_of(asked)
    assert found is not None
    assert found.command == f"perfd capture start llama {options}"


def test_an_alerts_capture_again_has_its_ranks_and_the_steps_of_its_profile() -> None:
    found = correction_of(replace(refused("Cooldown: x"), alert="Slow", ranks="3+peer", steps=5))
    assert found is not None
    assert found.command == "perfd capture start llama --ranks 3+peer"


def test_without_nsys_the_node_needs_it_or_the_job_kineto() -> None:
    found = correction_of(refused("nsys not found on this node.", node="n1"))
    assert found is not None
    assert "nsight-systems-cli" in found.words


def test_what_a_node_wrote_into_a_reason_never_becomes_a_command() -> None:
    found = correction_of(refused("Busy: capture $(reboot);x is running on this node."))
    assert found is not None
    assert shlex.split(found.command) == ["perfd", "capture", "cancel", "$(reboot);x"]


def test_a_rank_whose_agent_was_late_has_a_correction_and_a_finished_capture_has_none() -> None:
    late = Participant(node="n2", rank=1, state=CaptureState.LATE, reason="The agent did not answer.")
    done = Participant(node="n1", rank=0, state=CaptureState.DONE)
    capture = refused("")
    found = correction_of(
        Capture(
            capture_id="c1", job="llama", tool=capture.tool, profile="default", requested_unix_s=0.0,
            start_unix_s=0.0, max_duration_s=1.0, participants=[done, late], state=CaptureState.LATE,
            reason=late.reason,
        )
    )  # fmt: skip
    assert found is not None
    assert (found.node, found.command) == ("n2", "perfd doctor")
    assert correction_of(
        Capture(
            capture_id="c1", job="llama", tool=capture.tool, profile="default", requested_unix_s=0.0,
            start_unix_s=0.0, max_duration_s=1.0, participants=[done], state=CaptureState.DONE,
        )
    ) is None  # fmt: skip
