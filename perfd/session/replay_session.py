"""Plays a recording through a real agent per node, real gRPC and a real aggregator."""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy.ma  # noqa: F401  (numpy loads it at first use; here that belongs to the start of the program)

from perfd.agent.agent import Agent
from perfd.agent.collection import CollectorTask
from perfd.aggregator.aggregator import Aggregator
from perfd.analysis.diagnosis import JobSummary
from perfd.clock import ROUND_AFTER, SEND_AFTER, Clock, SystemClock, VirtualClock
from perfd.collector import Settings
from perfd.config import AgentCaptureConfig, AgentConfig, CollectorConfig, UplinkConfig
from perfd.errors import PerfdError
from perfd.process_memory import tune_malloc
from perfd.recording.recording_format import open_recording
from perfd.session.recording import Playback, installed_players, open_playback
from perfd.session.session_config import SessionConfig

TICK_S = 1.0
"""Replayed time between two batches: the same at any speed, so that the numbers are too, and as long as
between two looks of a live session: with fewer looks, faults that follow each other would be one."""
_ACKNOWLEDGE_LIMIT_S = 30.0
"""For one batch of a replay, on a busy machine too. Chosen."""
_SHOW_EVERY_S = 0.25
"""In a paced replay, progress is shown between ticks too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What to play, and how fast."""

    recording: Path
    speed: float | None = None
    """Seconds of the recording per second; None is as fast as possible."""
    skip_s: float = 0.0
    """This much of the beginning is played as fast as possible, to skip a job's startup."""
    tick_s: float = TICK_S
    """Replayed time between two batches, and looks at the job."""
    allow_missing: bool = False
    config: SessionConfig = field(default_factory=SessionConfig)
    http: str | None = None
    """The address of /metrics and /api/v1 meanwhile; None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProgress:
    """How far a replay is."""

    played_s: float
    total_s: float
    start_unix_s: float
    """When the recording begins."""
    aggregator: Aggregator


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of a replay."""

    summaries: Sequence[JobSummary]
    alerts: Sequence[Mapping[str, Any]]
    """Entries of schema perfd.alerts/1."""
    warnings: Sequence[str]
    played_s: float
    """Length of the recording."""
    took_s: float
    """Real time from the first tick to the summary, excluding the start of the servers."""


def replay(
    options: ReplayOptions,
    *,
    on_progress: Callable[[ReplayProgress], None] = lambda _: None,
    on_end: Callable[[ReplayResult, Aggregator], None] = lambda _, __: None,
    real_clock: Clock | None = None,
) -> ReplayResult:
    """Play a recording to its end; raises `RecordingError` if there is nothing to play.

    All agents and the aggregator share one clock, which only this function advances. Each tick
    collects, sends, waits for the acknowledgment, and makes a round of analysis and rules.
    The result is therefore the same at any speed. The aggregator serves until `on_end` returns.
    """
    pace = _Pace(options.speed, options.skip_s, real_clock or SystemClock())
    recording = open_recording(options.recording, allow_missing=options.allow_missing)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perfd-replay-")))
        clock = VirtualClock()
        playback = open_playback(
            recording, scratch / "streams", clock, installed_players(), interval_s=options.tick_s
        )
        # As live: what agents read at multiples of the interval in Unix time, they have when they send.
        tick_ns, send_ns = round(options.tick_s * 1e9), round(SEND_AFTER * options.tick_s * 1e9)
        first_ns = playback.start_unix_ns - (playback.start_unix_ns - send_ns) % tick_ns
        round_after_s = (ROUND_AFTER - SEND_AFTER) * options.tick_s
        clock.advance_to_unix_ns(first_ns)
        aggregator = _start_aggregator(options, clock, stack)
        agents = _start_agents(playback, scratch / "spools", aggregator.grpc_address, clock, stack)
        # Descriptions and connections come before the recording's time begins to run.
        _send(agents)
        # Everything loaded by now stays; scanning it again in each garbage collection costs a fifth.
        gc.freeze()
        stack.callback(gc.unfreeze)
        total_s = (playback.end_unix_ns - playback.start_unix_ns) / 1e9
        lead_s = (playback.start_unix_ns - first_ns) / 1e9
        show = _shower(on_progress, lead_s, total_s, playback.start_unix_ns / 1e9, aggregator)
        pace.begin()
        # The last tick is at the end or after it.
        for number in range(1, math.ceil((lead_s + total_s) / options.tick_s) + 1):
            pace.keep(number * options.tick_s, show)
            clock.advance_to_unix_ns(first_ns + number * tick_ns)
            _send(agents)
            clock.advance(round_after_s)
            aggregator.tick()
            show(number * options.tick_s)
        aggregator.tick()
        result = ReplayResult(
            summaries=aggregator.summary(),
            alerts=aggregator.alerts(),
            warnings=playback.warnings,
            played_s=total_s,
            took_s=pace.elapsed_s(),
        )
        on_end(result, aggregator)
        return result


class _Pace:
    """Keeps real time in step with the recording's."""

    def __init__(self, speed: float | None, skip_s: float, clock: Clock) -> None:
        self._speed = speed
        self._skip_s = skip_s
        self._clock = clock
        self._begun_s = 0.0

    def begin(self) -> None:
        self._begun_s = self._clock.monotonic_s()

    def elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._begun_s

    def keep(self, played_s: float, show: Callable[[float], None]) -> None:
        """Return when `played_s` of the recording are due; meanwhile `show` gets the progress."""
        if self._speed is None:
            return
        while (left_s := (played_s - self._skip_s) / self._speed - self.elapsed_s()) > 0:
            self._clock.sleep(min(left_s, _SHOW_EVERY_S))
            show(min(played_s, self._skip_s + self.elapsed_s() * self._speed))


def _shower(
    on_progress: Callable[[ReplayProgress], None],
    lead_s: float,
    total_s: float,
    start_unix_s: float,
    aggregator: Aggregator,
) -> Callable[[float], None]:
    """Takes what was played since the first tick, which is `lead_s` before the recording's first record."""
    return lambda played_s: on_progress(
        ReplayProgress(
            played_s=min(max(played_s - lead_s, 0.0), total_s),
            total_s=total_s,
            start_unix_s=start_unix_s,
            aggregator=aggregator,
        )
    )


def _start_aggregator(options: ReplayOptions, clock: Clock, stack: ExitStack) -> Aggregator:
    config = msgspec.structs.replace(
        options.config.aggregator, listen="127.0.0.1:0", tls=None, http_listen=options.http
    )
    # Its rounds follow each other at once; a sixth of their time went into pages that glibc had given back.
    tune_malloc()
    aggregator = Aggregator(config, clock, manual=True, captures=False)
    aggregator.start()
    stack.callback(aggregator.stop)
    return aggregator


def _start_agents(
    playback: Playback, spools: Path, address: str, clock: Clock, stack: ExitStack
) -> Sequence[Agent]:
    agents = []
    for number, (node, specs) in enumerate(playback.specs.items()):
        settings = Settings(node=node, job="", clock=clock)
        agent = Agent(
            # A capture would trace processes of this machine, not of the recorded job.
            AgentConfig(
                listen=None,
                uplink=UplinkConfig(address=address),
                capture=AgentCaptureConfig(enabled=False),
            ),
            node=node,
            spool_directory=spools / str(number),
            tasks=[CollectorTask(spec, CollectorConfig(), settings) for spec in specs],
            clock=clock,
            manual=True,
        )
        stack.callback(agent.stop)
        agent.start()
        agents.append(agent)
    return agents


def _send(agents: Sequence[Agent]) -> None:
    """Collect what is due, and return when the aggregator has it."""
    sent = [(agent, agent.step()) for agent in agents]
    for agent, sequence in sent:
        if sequence is not None and not agent.wait_acknowledged(sequence, _ACKNOWLEDGE_LIMIT_S):
            raise PerfdError(
                f"The aggregator did not acknowledge a batch within {_ACKNOWLEDGE_LIMIT_S:.0f} s: "
                "check whether processes can connect over the loopback interface."
            )
