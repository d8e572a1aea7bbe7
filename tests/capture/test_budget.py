"""What holds captures back is forgotten when it holds back nothing any more."""

from perfd.capture.policy.capture_budget import CaptureBudget
from perfd.capture.policy.capture_record import Capture
from perfd.capture.policy.policy_events import AlertFired
from perfd.capture.selection.rank_selection import JobView
from perfd.config import CaptureProfile
from perfd.model import Alert, AlertState, CaptureTool

START = 1_700_000_000.0
PROFILE = CaptureProfile(cooldown_s=7200, max_per_hour=3)


def began(budget, job, *, alert="Slow", at=START):
    budget.began(
        Capture(
            capture_id=f"{job}-{at}",
            job=job,
            tool=CaptureTool.NSYS,
            profile="default",
            alert=alert,
            requested_unix_s=at,
            start_unix_s=at,
            max_duration_s=1.0,
        )
    )


def held_back(budget, job, now):
    fired = AlertFired(
        alert=Alert(name="Slow", labels={}, state=AlertState.FIRING), job=JobView(job=job, nodes=("a",))
    )
    return budget.held_back(fired, "default", PROFILE, now)


def test_jobs_that_are_long_over_take_no_memory():
    budget = CaptureBudget(7200)
    for number in range(1000):
        began(budget, f"job-{number}", at=START + number)
    budget.forget(START + 1000)
    assert len(budget) == 2000
    budget.forget(START + 1000 + 7200)
    assert len(budget) == 0


def test_what_still_counts_is_kept():
    budget = CaptureBudget(7200)
    began(budget, "llama")
    budget.forget(START + 7199)
    assert "1 s are left" in held_back(budget, "llama", START + 7199)
    for at in (0, 1, 2):
        began(budget, "mistral", alert="", at=START + at)
    budget.forget(START + 3601)
    assert "Budget" not in held_back(budget, "mistral", START + 3601)
    assert "3 captures" in held_back(budget, "mistral", START + 3599)
