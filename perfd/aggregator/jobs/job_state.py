"""All that is known of one job, as its records come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from perfd.aggregator.jobs.description_merge import SoftwareOfNodes, is_same_start, merged_description
from perfd.aggregator.jobs.job_attempts import JobAttempts
from perfd.aggregator.jobs.job_lifetime import JobEnd, Lifetime
from perfd.aggregator.jobs.job_logs import JobLogs
from perfd.aggregator.jobs.job_ownership import JobOwnership
from perfd.aggregator.jobs.operation_step_rows import OperationStepRows
from perfd.aggregator.jobs.record_source import RecordSource
from perfd.aggregator.jobs.step_sources import StepSources, shows_pace
from perfd.aggregator.jobs.step_tables import PhaseRows, StepRows
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.limits.plausible_values import plausible_description
from perfd.aggregator.operations import FoundSteps, JobCommunication
from perfd.analysis.data.job_data import Captured, OperationPace, StepTable
from perfd.analysis.diagnosis import JobPast
from perfd.analysis.steps import timed_by_arrival
from perfd.errors import RefusedError
from perfd.model import (
    HOOK_MARK,
    CollectiveProgress,
    CollectiveTimes,
    Event,
    EventKind,
    JobDescription,
    JobOutcome,
    LogProgress,
    MemoryReport,
    StepPhases,
    StepSource,
    TrainingStep,
    job_labels,
)


class JobState:
    """One job. `version` counts up whenever something that the analysis reads has changed."""

    def __init__(
        self,
        name: str,
        limits: Limits,
        counters: AggregatorCounters,
        ownership: JobOwnership | None = None,
    ) -> None:
        self.name = name
        self.version = 0
        self.attempts = JobAttempts(limits.ranks_per_job)
        self.description: JobDescription | None = None
        self._software = SoftwareOfNodes()
        self.steps = StepRows(limits.steps_per_job)
        self.operation_steps = OperationStepRows(limits.steps_per_job)
        self._sources = StepSources()
        self.phases = PhaseRows.within(limits)
        self.communication = JobCommunication(limits, counters)
        self.memory: dict[int | None, MemoryReport] = {}
        self.events: deque[Event] = deque(maxlen=limits.events_per_job)
        self.logs = JobLogs(limits.streams_per_job)
        self.nodes: dict[str, float] = {}
        """Nodes that report the job, with the monotonic time they last did."""
        self.received_s = 0.0
        self.captured: Captured | None = None
        """By the newest capture that shows where time goes."""
        self.lifetime = Lifetime(limits.nodes_per_job)
        self.ownership = ownership or JobOwnership()
        self.exported = True
        """Whether it has series; those of a job leave some time after its end."""
        self._limits = limits
        self._counters = counters

    @property
    def labels(self) -> Mapping[str, str]:
        """Those of all its series."""
        return job_labels(self.name, self.ownership.origin)

    @property
    def ended(self) -> bool:
        """Whether it is over, if known."""
        return self.lifetime.end is not None

    @property
    def ended_unix_s(self) -> float | None:
        """When it ended, or None while it runs."""
        return self.lifetime.end.time_unix_s if self.lifetime.end else None

    @property
    def step_source(self) -> StepSource | None:
        """What shows its steps; None before the first."""
        return self._sources.used if len(self.steps) else None

    def step_table(self) -> StepTable:
        """A copy of its steps that later lines do not change."""
        table = self.steps.table()
        if not self._sources.by_arrival:
            return table
        return timed_by_arrival(table, exact=self.logs.times_are_exact)

    @property
    def operation_pace(self) -> OperationPace | None:
        """Which operations show its steps; None where a log does."""
        return self.operation_steps.pace if self._sources.by_operations else None

    @property
    def world_size(self) -> int | None:
        """How many ranks the job says it has."""
        return self.description.parallel.world_size if self.description else None

    def touch(self, source: RecordSource) -> None:
        """Note that a node reported the job."""
        if source.node not in self.nodes and len(self.nodes) >= self._limits.nodes_per_job:
            self._counters.rejected["nodes_per_job"] += 1
            return
        self.nodes[source.node] = source.now_s
        self.received_s = max(self.received_s, source.now_s)
        if source.agent_id:
            self.lifetime.reports(source.agent_id)
        if self.attempts.started_unix_s is None:
            self.attempts.started_unix_s = source.sent_unix_s

    def describe(self, description: JobDescription, source: RecordSource) -> Event | None:
        """Merge what the job says of itself; returns an event when that shows another start.

        The later word wins where it says something. Another layout or model is another
        start of the job, so that nothing of the old one may be mixed into it. Raises
        `RefusedError` if the node is none of the job's.
        """
        description = plausible_description(description)
        description = self._software.joined(description, source.node, known=source.node in self.nodes)
        if (description.parallel.world_size or 0) > self._limits.ranks_per_job:
            self._counters.rejected["ranks_per_job"] += 1
            return None
        same = self.description is None or is_same_start(self.description, description)
        if not same and not source.member:
            raise RefusedError("A node outside the job described another layout or model.")
        self.version += 1
        self.ownership.reports(source.node)
        if same and self.description is not None:
            description = merged_description(self.description, description, self._counters.rejected)
        self.description = description
        if same:
            self.operation_steps.describe(description.parallel.micro_batches)
            return None
        self._software = SoftwareOfNodes()
        self.steps = StepRows(self._limits.steps_per_job)
        self.operation_steps = OperationStepRows(self._limits.steps_per_job)
        self.operation_steps.describe(description.parallel.micro_batches)
        self._sources = StepSources()
        self.phases = PhaseRows.within(self._limits)
        self.communication.clear()
        self.memory.clear()
        self.attempts.forget_logs()
        return self._restarted(source.sent_unix_s, "The job started again with another layout or model.")

    def step(self, line: TrainingStep, source: RecordSource) -> Event | None:
        """Add a progress line; returns an event when it shows that the job went back to an earlier step.

        Raises `RefusedError` if the node is none of the job's.
        """
        if self._sources.by_operations and not source.member:
            raise RefusedError("A node outside the job reported steps that its log does not show.")
        self.version += 1
        made_unix_s = source.made_unix_s(line.time_unix_ns)
        if self._sources.by_operations and not self._sources.takes_over(line, made_unix_s):
            # Operations show the time, too.
            if not source.late:
                self.operation_steps.line(line.step, made_unix_s)
            return None
        if self._sources.by_operations:
            # The log knows better.
            self.steps = StepRows(self._limits.steps_per_job)
        by_hook = HOOK_MARK in line.extras
        if by_hook and not self._sources.by_hook:
            if not source.member and len(self.steps):
                raise RefusedError("A node outside the job reported steps of its process.")
            self.steps = StepRows(self._limits.steps_per_job)
            self.attempts.forget_logs()
        self._sources.line(line)
        if self._sources.by_hook and not by_hook:
            # The job's own process knows better; its log adds what that leaves out, such as the loss.
            if self.steps.unix_s(line.step) is not None:
                self.steps.put(line, source.sent_unix_s)
            return None
        return self._line(line, source)

    def _line(self, line: TrainingStep, source: RecordSource) -> Event | None:
        """Add a line of what shows the job's steps."""
        if source.late:
            self.steps.put(line, source.sent_unix_s)
            return None
        if line.time_unix_ns is not None:
            self.operation_steps.timed_line(line.step, line.time_unix_ns / 1e9)
        self.logs.works(source.now_s)
        is_new = self._begins_again(line) or not self.steps.same_line(line)
        event = self._new_line(line, source) if is_new else None
        self.attempts.line(line.step, source)
        self.ownership.reports(source.node)
        self._put(line, source.sent_unix_s)
        return event

    def _begins_again(self, line: TrainingStep) -> bool:
        """Whether the job ended since the step was printed: without times it may repeat its lines exactly."""
        before_unix_s = self.steps.unix_s(line.step)
        if before_unix_s is None or line.time_unix_ns is None:
            return False
        at_unix_s = line.time_unix_ns / 1e9
        surely = self.attempts.surely_begins(at_unix_s)
        return surely or self.lifetime.ended_between(before_unix_s, at_unix_s)

    def _put(self, line: TrainingStep, unix_s: float) -> None:
        self.steps.put(line, unix_s)
        if self.steps.last_unix_s is not None:
            self.attempts.stepped(self.steps.last_unix_s)

    def step_phases(self, block: StepPhases, _source: RecordSource) -> None:
        """Add a block of phase timers."""
        self.version += 1
        self._counters.rejected["phases_per_job"] += self.phases.put(block)

    def steps_by(self, times: CollectiveTimes, source: RecordSource) -> Event | None:
        """Add the steps that a rank's collectives show if no log does; returns an event for another start."""
        self.version += 1
        if not source.late:
            self.logs.works(source.now_s)
        self._sources.communicates = self._sources.communicates or times.communicator_size != 1
        if (self._by_log and self.steps.one_a_line) or source.late or not source.member:
            return None
        return self._show(self.operation_steps.put(times, source.sent_unix_s), source.sent_unix_s)

    @property
    def _by_log(self) -> bool:
        """Whether the log shows how long steps take."""
        return self.step_source is StepSource.LOG and self._sources.log_has_times

    def _show(self, found: FoundSteps, unix_s: float) -> Event | None:
        """Add what operations show, unless it is only kept beside the log's lines."""
        if self._by_log:
            return None
        if found.anew or (found.rows and not self._sources.by_operations):
            # Lines of the log without times show less than operations do.
            self.steps = StepRows(self._limits.steps_per_job)
        self._sources.operations_show(found.rows, unix_s)
        event = None
        for row in found.rows:
            if self.attempts.begins_with(row):
                # Nothing says how many of the steps before are computed again.
                lost = {"lost_s": self.steps.lost_by(row, unix_s)["lost_s"]}
                event = self._restarted(unix_s, "The job started again.", line=row, lost=lost)
            self._put(row, unix_s)
        return event

    def collective_progress(self, progress: CollectiveProgress, _source: RecordSource) -> None:
        """Add how far one rank is on one communicator."""
        self.version += 1
        self.communication.progress.put(progress)

    def memory_report(self, report: MemoryReport, _source: RecordSource) -> None:
        """Keep the newest report of a rank."""
        if report.rank not in self.memory and len(self.memory) >= self._limits.memory_reports_per_job:
            self._counters.rejected["memory_reports_per_job"] += 1
            return
        self.version += 1
        self.memory[report.rank] = report

    def event(self, event: Event, now_s: float = 0.0) -> None:
        """Note what happened; the job's start and end are read from it."""
        self.version += 1
        self.events.append(event)
        time_unix_s = event.time_unix_ns / 1e9
        self.attempts.event(event, self.steps, self.lifetime.end, now_s)
        if event.kind in {EventKind.JOB_STARTED, EventKind.RESTARTED}:
            self._sources.by_hook = False
            self.lifetime.starts(time_unix_s)
        elif event.kind is EventKind.NCCL_TIMES_WRONG:
            self.communication.collectives.doubt()
        elif event.kind is EventKind.JOB_ENDED:
            self.lifetime.take(JobEnd.of(event))
            self._show(self.operation_steps.end(self.name, time_unix_s), time_unix_s)

    def leave(self, agent_id: str, time_unix_s: float, now_s: float) -> None:
        """Note that an agent said goodbye: its view of a log shows no silence any more."""
        if not self.lifetime.leaves(agent_id, time_unix_s, now_s):
            return
        self.attempts.leave(agent_id)
        self.logs.leave(agent_id)

    def end_if_over(self, now_s: float) -> Event | None:
        """End the job if its agents stayed away long enough; returns the event of that end, else None."""
        end = self.lifetime.end_if_over(now_s)
        ended_s = self.lifetime.ended_s
        self.exported = ended_s is None or now_s - ended_s <= self._limits.ended_series_s
        if end is None:
            return None
        event = Event(
            kind=EventKind.JOB_ENDED,
            time_unix_ns=round(end.time_unix_s * 1e9),
            message="The ranks of the job, or its agents, are gone; its exit code is unknown.",
            job=self.name,
            outcome=end.outcome,
        )
        self.version += 1
        self.events.append(event)
        self._show(self.operation_steps.end(self.name, end.time_unix_s), end.time_unix_s)
        return event

    def begins_anew(self, since_unix_s: float, now_s: float) -> None:
        """Take in that scheduler or launcher started the job again; its first step then begins an attempt."""
        if self.steps.last_step is not None:
            self.attempts.begins_anew(since_unix_s, now_s)

    def rank_started(self, rank: int, started_unix_s: float, now_s: float) -> None:
        """Note when a rank's process started; another process after the newest step is another start."""
        if self.attempts.rank_started(rank, started_unix_s, self.steps.last_unix_s, now_s):
            self.operation_steps.rank_started(rank)

    def stepless_s(self, now_s: float) -> float | None:
        """How long ago the job was started again without a step since; None if it has one, or ended."""
        return None if self.ended else self.attempts.stepless_s(now_s)

    def take_captured(self, captured: Captured | None) -> None:
        """Note the evidence of the newest capture."""
        if captured != self.captured:
            self.version += 1
            self.captured = captured

    def log_progress(self, progress: LogProgress, source: RecordSource) -> None:
        """Note how far a log was read."""
        if not self.logs.put(progress, source):
            self._counters.rejected["streams_per_job"] += 1

    def log_silent_s(self, now_s: float) -> float | None:
        """How long no log of the job has had a new line; None if no agent can see a log."""
        if self.ended or self.lifetime.deserted:
            return None
        return self.logs.silent_s(now_s)

    def restore(
        self,
        *,
        attempt: int,
        started_unix_s: float | None,
        description: JobDescription | None,
        past: JobPast = JobPast(),  # noqa: B008  (immutable)
    ) -> None:
        """Go on with the attempt that history knows."""
        self.attempts.restore(attempt, started_unix_s, past)
        self.description = None if description is None else plausible_description(description)
        self.version += 1

    def restore_step(self, line: TrainingStep, sent_unix_s: float) -> None:
        """Add a step that history knows."""
        self._sources.was_paced = self._sources.was_paced or shows_pace(line)
        self.steps.put(line, sent_unix_s)

    def _new_line(self, line: TrainingStep, source: RecordSource) -> Event | None:
        printed_unix_s = source.made_unix_s(line.time_unix_ns)
        end = self.lifetime.end
        shown = self.attempts.start_shown_by(line.step, printed_unix_s, source, self.steps, self.ended_unix_s)
        if shown is not None:
            return self._start_from(line, source, shown)
        goes_on = self.lifetime.steps_on(printed_unix_s)
        if goes_on and end is not None and end.outcome is not JobOutcome.UNKNOWN:
            self.communication.clear()
            lost = self.steps.lost_by(line, source.sent_unix_s)
            message = f"Step {line.step} came after the job's end."
            return self._restarted(source.sent_unix_s, message, line=line, lost=lost)
        return None

    def _start_from(self, line: TrainingStep, source: RecordSource, message: str) -> Event:
        """Begin an attempt with a line, and drop the steps that it computes again."""
        self.communication.clear()
        lost = self.steps.lost_by(line, source.sent_unix_s)
        self.steps.cut_from(line.step)
        self.phases.cut_from(line.step)
        return self._restarted(source.sent_unix_s, message, line=line, lost=lost)

    def _restarted(
        self,
        sent_unix_s: float,
        message: str,
        *,
        line: TrainingStep | None = None,
        lost: Mapping[str, float] | None = None,
    ) -> Event:
        self.lifetime.revive()
        event = Event(
            kind=EventKind.RESTARTED,
            time_unix_ns=(line.time_unix_ns if line else None) or round(sent_unix_s * 1e9),
            message=message,
            job=self.name,
            step=line.step if line else None,
            values=lost or {},
        )
        self.events.append(event)
        self.attempts.next(event.time_unix_ns / 1e9, event.values.get("lost_s"))
        return event
