"""The report of a job that runs, without a trace: of all of it, or since a moment."""

import json
from datetime import UTC, datetime

import pytest
from aggregator.support import aggregator, gpus, place, step

from perfd.cli import main
from perfd.model import JobDescription, ParallelLayout
from tests.support.fake_agent import FakeAgent


@pytest.fixture
def served():
    """A job whose steps take 1 s until second 70 and 2 s from then on."""
    with aggregator(http_listen="127.0.0.1:0") as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        layout = ParallelLayout(world_size=1)
        agent.send(JobDescription(job="llm", framework="megatron-lm", parallel=layout))
        agent.send(*(step(n, time_s=n, step_time_s=1.0 if n <= 70 else 2.0) for n in range(1, 101)))
        agent.send(place(0, 0), *(gpus(t, sm_active_ratio=0.8 if t <= 70 else 0.4) for t in range(101)))
        running.tick()
        yield running.http_address


def report(served, capsys, *words):
    assert main(["report", "--job", "llm", "--aggregator", served, "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def value(document, name):
    return next(metric["value"] for metric in document["metrics"] if metric["name"] == name)


def test_only_what_came_since_counts(served, capsys):
    moment = datetime.fromtimestamp(70.5, UTC).isoformat()
    since = report(served, capsys, "--since", moment)
    assert value(since, "Step time") == "2000.0 ms"
    (table,) = [table for table in since["tables"] if table["title"] == "GPUs"]
    assert table["rows"][0][2] == "40.0%", "counters are of that time too"
    whole = report(served, capsys)
    assert value(whole, "Step time") != "2000.0 ms"


def test_every_number_names_the_source_and_the_moment(served, capsys):
    document = report(served, capsys, "--since", "1970-01-01T00:01:10Z")
    assert document["schema"] == "perfd.report/1"
    sources = [metric["source"] for metric in document["metrics"]]
    sources += [table["source"] for table in document["tables"]]
    assert sources
    for source in sources:
        assert served in source
        assert "since 1970-01-01 00:01:10 UTC" in source


@pytest.mark.parametrize("form", ["md", "html", "json"])
def test_the_report_has_three_forms(served, capsys, tmp_path, form):
    path = tmp_path / f"r.{form}"
    words = ["report", "--job", "llm", "--aggregator", served, "--since", "1970-01-01T00:01:10"]
    assert main([*words, "-o", str(path)]) == 0
    assert "2000.0 ms" in path.read_text(encoding="utf-8")
    assert capsys.readouterr().out == ""


def test_a_time_without_steps_is_one_sentence(served, capsys):
    assert main(["report", "--job", "llm", "--aggregator", served, "--since", "1m"]) == 2
    err = capsys.readouterr().err
    assert "has had no step since then" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "moment", ["yesterday", "5", "2026-13-01", "1w", "999999d", "0001-01-01T00:00+14:00", ""]
)
def test_what_is_no_moment_is_refused(moment, capsys):
    with pytest.raises(SystemExit) as left:
        main(["report", "--job", "llm", "--since", moment])
    assert left.value.code == 2
    assert "is not a time" in capsys.readouterr().err


def test_a_file_has_no_since(tmp_path, capsys):
    assert main(["report", str(tmp_path / "summary.json"), "--since", "30m"]) == 2
    assert "--job" in capsys.readouterr().err
