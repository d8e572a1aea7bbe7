"""Exporters of other packages, found by entry point, and what the configuration may not say."""

import textwrap
from pathlib import Path

import pytest
from aggregator.support import START_S, aggregator, step
from exporters.rounds import job_round
from exporters.support import context, until

from perfd.clock import VirtualClock
from perfd.config import (
    AlertmanagerConfig,
    ExportersConfig,
    HistoryConfig,
    JsonLinesConfig,
    RemoteWriteConfig,
    WandbConfig,
)
from perfd.errors import ConfigError
from perfd.exporters.exporter import Round
from perfd.exporters.exporter_registry import ExporterRegistry
from perfd.model import Event, EventKind
from tests.support.fake_agent import FakeAgent

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "exporters.md"
MODULE = """
    import threading
    from pathlib import Path
    from perfd.errors import ConfigError

    class Lines:
        def __init__(self, options, context):
            if "path" not in options:
                raise ConfigError("exporters.others.lines.path: say where.")
            self.path, self.tally = Path(options["path"]), context.tally
        def export(self, round_):
            with self.path.open("a") as file:
                file.write(f"{len(round_.frames)}\\n")
            self.tally.sent += 1
        def close(self):
            self.path.with_suffix(".closed").touch()

    class Hangs:
        def __init__(self, options, context):
            self.forever = threading.Event()
        def export(self, round_):
            self.forever.wait()
        close = export

    class Raises(Lines):
        def export(self, round_):
            raise RuntimeError("never")

    class Finals(Lines):
        def export(self, round_):
            with self.path.open("a") as file:
                file.writelines(f"{one.name} {one.steps.last}\\n" for one in round_.finals)

    class Last(Lines):
        def close(self):
            while any(thread.name == "perfd-history" for thread in threading.enumerate()):
                threading.Event().wait(0.01)
            super().close()

    def cannot_start(options, context):
        return options["missing"]
"""
NAMES = {
    "lines": "Lines",
    "hangs": "Hangs",
    "raises": "Raises",
    "finals": "Finals",
    "last": "Last",
    "cannot_start": "cannot_start",
    "gone": "nothing",
}


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """A distribution with a module and entry points, as an installer leaves it."""
    site = tmp_path / "site"
    info = site / "tiny_exporters-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "tiny_exporters.py").write_text(textwrap.dedent(MODULE))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-exporters\nVersion: 1.0\n")
    points = "\n".join(f"{name} = tiny_exporters:{target}" for name, target in NAMES.items())
    (info / "entry_points.txt").write_text(f"[perfd.exporters]\n{points}\n")
    monkeypatch.syspath_prepend(str(site))


def test_the_example_of_the_documentation_is_an_exporter(capsys):
    text = DOCUMENTATION.read_text()
    code = textwrap.dedent(text[text.index("    class Mine:") : text.index("The contract is")])
    names = {}
    exec(code, names)
    given = context()
    mine = names["Mine"]({}, given)
    mine.export(Round(time_unix_s=0.0, jobs=[job_round(3, mfu_ratio=0.4)]))
    mine.close()
    assert capsys.readouterr().out == "llm 3 0.4\n"
    assert given.tally.sent == 1


def page(running):
    running.tick()
    return running.page().decode()


def test_an_exporter_of_another_package_gets_its_options_and_each_round(tmp_path):
    path = tmp_path / "lines"
    config = ExportersConfig(others={"lines": {"path": str(path)}})
    with aggregator(exporters=config) as running:
        until(lambda: 'perfd_exporter_sent_total{exporter="lines"} 3' in page(running))
    assert len(path.read_text().splitlines()) >= 3
    assert path.with_suffix(".closed").exists()


def ended(clock):
    return Event(kind=EventKind.JOB_ENDED, time_unix_ns=clock.unix_ns(), message="", job="llm")


@pytest.mark.parametrize(
    ("ends", "starts_again", "expected"),
    [
        (False, False, ["llm 3"]),
        (True, False, ["llm 3"]),
        (True, True, ["llm 3", "llm 2"]),
        (False, True, ["llm 2"]),
    ],
    ids=["silent", "ended", "ended and silent after a restart", "restarted and silent"],
)
def test_a_job_that_is_forgotten_leaves_one_final_summary_for_each_end(
    tmp_path, ends, starts_again, expected
):
    path, clock = tmp_path / "finals", VirtualClock(round(START_S * 1e9))
    config = ExportersConfig(others={"finals": {"path": str(path)}})
    with (
        aggregator(clock, exporters=config, job_forgotten_after_s=60.0) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        agent.send(*(step(number, time_s=START_S + number) for number in (1, 2, 3)))
        running.tick()
        if ends:
            agent.send(ended(clock))
            running.tick()
        if starts_again:
            agent.send(*(step(number, time_s=START_S + 10 + number, step_time_s=2.0) for number in (1, 2)))
            running.tick()
        for _ in range(3):
            clock.advance(61)
            running.tick()
        assert running.jobs() == []
    assert path.read_text().splitlines() == expected


def test_a_job_that_goes_on_after_a_restart_has_its_summary_when_the_aggregator_ends(tmp_path):
    path, clock = tmp_path / "finals", VirtualClock(round(START_S * 1e9))
    config = ExportersConfig(others={"finals": {"path": str(path)}})
    with aggregator(clock, exporters=config) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(step(3, time_s=START_S), ended(clock))
        running.tick()
        agent.send(step(1, time_s=START_S + 10))
        running.tick()
    assert path.read_text().splitlines() == ["llm 3", "llm 1"]


def test_history_is_written_while_exporters_deliver_so_that_their_waits_do_not_add_up(tmp_path, caplog):
    path = tmp_path / "lines"
    config = ExportersConfig(others={"last": {"path": str(path)}})
    with aggregator(exporters=config, history=HistoryConfig(path=str(tmp_path / "h.sqlite"))) as running:
        running.tick()
    assert path.with_suffix(".closed").exists()
    assert "in time" not in caplog.text


def test_one_that_hangs_and_one_that_raises_hold_up_neither_rounds_nor_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("perfd.aggregator.aggregator._STOP_WITHIN_S", 0.0)
    monkeypatch.setattr("perfd.aggregator.aggregator._LAST_GRACE_S", 0.5)
    path, written = tmp_path / "lines", tmp_path / "rounds.jsonl"
    # The one that hangs is closed before the others.
    others = {"hangs": {}, "raises": {"path": str(path)}, "lines": {"path": str(path)}}
    config = ExportersConfig(jsonl=JsonLinesConfig(path=str(written)), others=others)
    with aggregator(exporters=config) as running:
        until(lambda: 'perfd_exporter_dropped_rounds_total{exporter="hangs"} 5' in page(running))
        until(lambda: 'perfd_exporter_queued_rounds{exporter="lines"} 0' in running.page().decode())
        last = running.page().decode()
    assert 'perfd_exporter_queued_rounds{exporter="hangs"} 30' in last
    assert 'perfd_exporter_failed_rounds_total{exporter="raises"} 0' not in last
    assert 'perfd_exporter_failed_rounds_total{exporter="lines"} 0' in last
    until(path.with_suffix(".closed").exists)
    assert len(written.read_text().splitlines()) > 30


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ExportersConfig(remote_write=RemoteWriteConfig(url="ftp://x")), "ftp://x"),
        (ExportersConfig(alertmanager=AlertmanagerConfig(urls=["nowhere"])), "nowhere"),
        (ExportersConfig(wandb=WandbConfig(mode="offline", run_id="{rank}")), "rank"),
        (
            ExportersConfig(others={"nobody": {}}),
            "'nobody'; installed: cannot_start, finals, gone",
        ),
        (ExportersConfig(others={"jsonl": {}}), "configure exporters.jsonl"),
        (ExportersConfig(others={"lines": {}}), "exporters.others.lines.path: say where"),
        (
            ExportersConfig(others={"cannot_start": {}}),
            "cannot_start raised KeyError: 'missing'",
        ),
        (ExportersConfig(others={"gone": {}}), "tiny_exporters:nothing raised AttributeError"),
    ],
)
def test_a_mistake_is_reported_before_anything_starts(config, words):
    with pytest.raises(ConfigError, match=words):
        ExporterRegistry(config, VirtualClock())
