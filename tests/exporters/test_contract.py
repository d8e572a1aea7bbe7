"""Exporters of other packages, found by entry point, and what the configuration may not say."""

import textwrap
from pathlib import Path

import pytest
from aggregator.support import aggregator
from exporters.rounds import job_round
from exporters.support import context, until

from perfd.clock import VirtualClock
from perfd.config import AlertmanagerConfig, ExportersConfig, JsonLinesConfig, RemoteWriteConfig, WandbConfig
from perfd.errors import ConfigError
from perfd.exporters.contract import Round
from perfd.exporters.registry import Exporters

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

    def cannot_start(options, context):
        return options["missing"]
"""
NAMES = {
    "lines": "Lines",
    "hangs": "Hangs",
    "raises": "Raises",
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


def test_one_that_hangs_and_one_that_raises_hold_up_neither_rounds_nor_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("perfd.aggregator.aggregator._EXPORT_GRACE_S", 0.5)
    path, written = tmp_path / "lines", tmp_path / "rounds.jsonl"
    # The one that hangs is closed before the others.
    others = {"hangs": {}, "raises": {"path": str(path)}, "lines": {"path": str(path)}}
    config = ExportersConfig(jsonl=JsonLinesConfig(path=str(written)), others=others)
    with aggregator(exporters=config) as running:
        until(lambda: 'perfd_exporter_dropped_rounds_total{exporter="hangs"} 5' in page(running))
        until(lambda: 'perfd_exporter_queued_rounds{exporter="lines"} 0' in page(running))
        last = page(running)
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
        (ExportersConfig(wandb=WandbConfig(mode="maybe")), "maybe"),
        (ExportersConfig(wandb=WandbConfig(mode="offline", run_id="{rank}")), "rank"),
        (
            ExportersConfig(others={"nobody": {}}),
            "'nobody'; installed are: cannot_start, gone",
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
def test_a_mistake_is_told_before_anything_starts(config, words):
    with pytest.raises(ConfigError, match=words):
        Exporters(config, VirtualClock())
