"""Plays a recording through a real agent per node, real gRPC and a real aggregator."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from perfd.agent.agent import Agent
from perfd.agent.task import CollectorTask
from perfd.aggregator.aggregator import Aggregator
from perfd.analysis.summary import JobSummary
from perfd.clock import Clock, SystemClock, VirtualClock
from perfd.collector import Settings
from perfd.config import AgentConfig, CollectorConfig, UplinkConfig
from perfd.errors import PerfdError
from perfd.recording.format import open_recording
from perfd.session.configuration import SessionConfig
from perfd.session.streams import Playback, Players, installed_players, open_playback

TICK_S = 1.0
"""How far time goes between two batches, whatever the speed: numbers do not depend on the speed."""
_ACKNOWLEDGE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What to play, and how fast."""

    recording: Path
    speed: float | None = None
    """Seconds of the recording per second; None is as fast as possible."""
    allow_missing: bool = False
    config: SessionConfig = field(default_factory=SessionConfig)
    http: str | None = None
    """Where /metrics and /api/v1 are served meanwhile; None for nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a replay is."""

    played_s: float
    total_s: float
    aggregator: Aggregator


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What came out of a replay."""

    summaries: Sequence[JobSummary]
    warnings: Sequence[str]
    played_s: float
    """Length of the recording."""
    took_s: float
    """Real time from the first tick to the summary, without the start of the servers."""


def replay(
    options: ReplayOptions,
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
    players: Players | None = None,
    real_clock: Clock | None = None,
) -> ReplayResult:
    """Play a recording to its end; raises `RecordingError` if there is nothing to play.

    One clock, which only this function moves, is shared by all agents and the
    aggregator: each tick collects, sends, waits for the acknowledgement and
    evaluates, so that the result is the same at any speed.
    """
    pace = _Pace(options.speed, real_clock or SystemClock())
    recording = open_recording(options.recording, allow_missing=options.allow_missing)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perfd-replay-")))
        clock = VirtualClock()
        playback = open_playback(
            recording, scratch / "streams", clock, players or installed_players(), interval_s=TICK_S
        )
        clock.advance_to_unix_ns(playback.start_unix_ns)
        aggregator = _start_aggregator(options, clock, stack)
        agents = _start_agents(playback, scratch / "spools", aggregator.grpc_address, clock, stack)
        # The first tick says what there is, and connects; then the recording's time begins to run.
        _tick(agents, aggregator, clock)
        total_s = (playback.end_unix_ns - playback.start_unix_ns) / 1e9
        pace.begin()
        ticks = 0
        while clock.unix_ns() < playback.end_unix_ns:
            ticks += 1
            pace.keep(ticks * TICK_S)
            clock.advance(TICK_S)
            _tick(agents, aggregator, clock)
            on_progress(
                Progress(played_s=min(total_s, ticks * TICK_S), total_s=total_s, aggregator=aggregator)
            )
        summaries = aggregator.summary(None)
        return ReplayResult(
            summaries=summaries, warnings=playback.warnings, played_s=total_s, took_s=pace.elapsed_s()
        )


class _Pace:
    """Keeps real time in step with the recording's."""

    def __init__(self, speed: float | None, clock: Clock) -> None:
        self._speed = speed
        self._clock = clock
        self._begun_s = 0.0

    def begin(self) -> None:
        self._begun_s = self._clock.monotonic_s()

    def elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._begun_s

    def keep(self, played_s: float) -> None:
        if self._speed is not None:
            self._clock.sleep(played_s / self._speed - self.elapsed_s())


def _start_aggregator(options: ReplayOptions, clock: Clock, stack: ExitStack) -> Aggregator:
    config = msgspec.structs.replace(
        options.config.aggregator, listen="127.0.0.1:0", tls=None, http_listen=options.http
    )
    aggregator = Aggregator(config, clock, manual=True)
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
            AgentConfig(listen=None, uplink=UplinkConfig(address=address)),
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


def _tick(agents: Sequence[Agent], aggregator: Aggregator, clock: Clock) -> None:
    sent = [(agent, agent.step()) for agent in agents]
    for agent, sequence in sent:
        if sequence is not None and not agent.wait_acknowledged(sequence, _ACKNOWLEDGE_LIMIT_S):
            raise PerfdError(
                f"The aggregator did not acknowledge a batch within {_ACKNOWLEDGE_LIMIT_S:.0f} s: "
                "see whether something keeps processes from talking over the loopback interface."
            )
    aggregator.tick(clock.unix_ns() / 1e9)
