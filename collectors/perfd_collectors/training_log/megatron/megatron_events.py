"""Events of a Megatron job: checkpoints, evaluations, profiles, reports, its end."""

from __future__ import annotations

from collections.abc import Mapping

from perfd.model import EventKind, PhaseTime
from perfd_collectors.training_log.format_parser import LogContext
from perfd_collectors.training_log.megatron import megatron_arguments as options
from perfd_collectors.training_log.megatron import megatron_reports as reports
from perfd_collectors.training_log.timestamps import last_timestamp_ns


class MegatronEvents:
    """Turns lines into events. A checkpoint is pending until its timer block gives its duration."""

    def __init__(self, job: LogContext) -> None:
        self._out = job.out
        self._steps = job.steps
        self._evaluation_s: float | None = None
        self._saved_step: int | None = None
        self._profiled: range | None = None

    def line(self, text: str) -> bool:
        """Parse a line; returns False if it is not an event."""
        return (
            self._memory(text)
            or self._straggler(text)
            or self._validation(text)
            or self._checkpoint(text)
            or self._milestone(text)
        )

    def arguments(self, arguments: Mapping[str, str]) -> None:
        """Note the options of a starting job."""
        self._steps.started()
        self._profiled = _profiled_steps(arguments)

    def iteration(self, step: int, printed_ns: int | None) -> None:
        """Note an iteration line; must be called before its step is added."""
        self.end_checkpoint(None)
        if self._profiled is not None and step in self._profiled and step != self._steps.last_step:
            message = f"Iteration {step} ran under a profiler enabled by the job's options."
            self._out.event(EventKind.PROFILE, message, printed_ns=printed_ns, step=step)

    def timers(self, of_event: Mapping[str, PhaseTime]) -> None:
        """Note timers that do not belong to a step."""
        if (evaluation := of_event.get("evaluate")) is not None:
            self._evaluation_s = evaluation.max_s
        if (saved := of_event.get("save-checkpoint")) is not None:
            self.end_checkpoint(saved.max_s)

    def end_checkpoint(self, duration_s: float | None) -> None:
        """Emit the pending checkpoint, if any."""
        step, self._saved_step = self._saved_step, None
        if step is not None:
            message = f"A checkpoint of iteration {step} was saved."
            self._out.event(EventKind.CHECKPOINT, message, step=step, duration_s=duration_s)

    def _memory(self, text: str) -> bool:
        found = reports.memory_reports(self._out.job, text) if "memory (" in text else ()
        for report in found:
            self._out.add(report)
        return bool(found)

    def _straggler(self, text: str) -> bool:
        values = reports.straggler_values(text) if "/Rnk: " in text or "^^^^ " in text else {}
        if values:
            edges = "Ranks with the lowest or highest throughput."
            self._out.event(
                EventKind.STRAGGLER_REPORT,
                edges if "^^^^" in text else "A straggler report.",
                printed_ns=last_timestamp_ns(text),
                step=self._steps.last_step,
                values=values,
            )
        return bool(values)

    def _validation(self, text: str) -> bool:
        found = reports.validation(text)
        if found is None:
            return "Evaluating iter" in text
        duration_s, self._evaluation_s = self._evaluation_s, None
        step = found[0] if found[0] is not None else self._steps.last_step
        message = f"Evaluation at iteration {step}." if step is not None else "Evaluation."
        self._out.event(EventKind.EVALUATION, message, step=step, duration_s=duration_s, values=found[1])
        return True

    def _checkpoint(self, text: str) -> bool:
        if (saved := reports.saved_checkpoint(text)) is not None:
            self.end_checkpoint(None)
            self._saved_step = saved
        elif (loaded := reports.loaded_checkpoint(text)) is not None:
            self._steps.resumed(loaded)
        elif (begun := reports.begun_checkpoint(text)) is not None:
            message = f"Saving the checkpoint of iteration {begun}."
            self._out.event(EventKind.CHECKPOINT_STARTED, message, step=begun)
        else:
            return "saving checkpoint at iteration" in text
        return True

    def _milestone(self, text: str) -> bool:
        if "] datetime: " not in text:
            return False
        if "[before the start of training step]" in text:
            self._steps.started(last_timestamp_ns(text))
        elif "[after training is done]" in text:
            self._out.event(EventKind.JOB_ENDED, "Training is done.", printed_ns=last_timestamp_ns(text))
        return True


def _profiled_steps(arguments: Mapping[str, str]) -> range | None:
    """The iterations that run under a profiler according to the options; None without one.

    The CUDA profiler starts before iteration `start + 1` and stops after `end`. PyTorch's counts from the
    top of the loop and warms up for one iteration, so it runs from `start - 1` and writes during `end`.
    """
    start = options.integer_if_known(arguments, "profile_step_start")
    end = options.integer_if_known(arguments, "profile_step_end")
    if arguments.get("profile") != "True" or start is None or end is None:
        return None
    by_torch = arguments.get("use_pytorch_profiler") == "True"
    return range(max(1, start - 1), end) if by_torch else range(start + 1, end + 1)
