"""Checks a captured trace in a process that can read only that file: the agent may have more rights."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from perfd.capture.node import CapturePlan
from perfd.errors import CaptureError, SandboxError
from perfd.sandbox.confined_call import ConfinedCallError, confined_call

_WITHIN_S = 300.0
"""Decoding the largest traces that are decoded takes less than a minute. Chosen, not measured."""

CheckT = TypeVar("CheckT")


def check_trace(
    function: str, trace: Path, plan: CapturePlan, result: msgspec.json.Decoder[CheckT]
) -> CheckT:
    """What `MODULE:FUNCTION` finds in a trace; raises `CaptureError`.

    The function takes the trace, whether to count its whole steps, and how long a step takes, if known.
    """
    options = [plan.steps is not None, plan.step_time_s]
    try:
        return result.decode(confined_call(function, [trace.absolute()], options=options, within_s=_WITHIN_S))
    except ConfinedCallError as error:
        raise CaptureError(f"The trace was not checked: {error}") from error
    except (SandboxError, msgspec.DecodeError) as error:
        raise CaptureError(str(error)) from error
