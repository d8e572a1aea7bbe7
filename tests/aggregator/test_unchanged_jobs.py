"""Series of a job whose numbers are not made again stay what they were, with its newest labels."""

from __future__ import annotations

from perfd.aggregator import Aggregator
from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig
from perfd.model import Batch, Hello, JobOrigin, TrainingStep


def test_series_of_a_job_without_news_stay_and_have_its_newest_labels() -> None:
    clock = VirtualClock(1_764_000_000_000_000_000)
    running = Aggregator(AggregatorConfig(listen="127.0.0.1:0", http_listen=None), clock, manual=True)
    intake = running._server._sessions  # type: ignore[attr-defined]
    hello = Hello(agent_id="a", node="n0", perfd_version="1", sent_unix_ns=clock.unix_ns(), first_sequence=1)
    agent, _ = intake.hello(hello, 1)

    def send(step: int) -> None:
        records = [TrainingStep(job="llm", step=step, step_time_s=2.0, losses={"lm loss": 1.0 / step})]
        intake.batch(
            agent,
            Batch(sequence=step if step < 20 else 101, sent_unix_ns=clock.unix_ns(), records=records),
            lambda: None,
        )

    def series() -> dict[str, float]:
        running.tick()
        frame = running._rounds.series.newest["jobs"]
        return {key.name: value for key, value in zip(frame.keys, frame.values.tolist(), strict=True)}

    def labels() -> dict[str, dict[str, str]]:
        return {key.name: dict(key.labels) for key in running._rounds.series.newest["jobs"].keys}

    def send_origin() -> None:
        records = [JobOrigin(job="llm", user="ada")]
        intake.batch(agent, Batch(sequence=100, sent_unix_ns=clock.unix_ns(), records=records), lambda: None)

    for step in range(1, 20):
        clock.advance(2.0)
        send(step)
    first = series()
    assert first["perfd_step"] == 19.0
    clock.advance(40.0)
    # Another name of the job's scheduler changes with no number of it.
    send_origin()
    later = series()
    assert later["perfd_step_time_seconds"] == first["perfd_step_time_seconds"] == 2.0
    assert later["perfd_step"] == 19.0
    assert labels()["perfd_step"]["user"] == "ada"
    send(20)
    assert series()["perfd_step"] == 20.0
