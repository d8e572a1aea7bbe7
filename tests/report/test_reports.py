"""Reports: what they contain, that every number names its source, and that nothing in them is dangerous."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from xml.etree import ElementTree as ET

import pytest

from perfd.cli import main
from perfd.errors import PerfdError
from perfd.formatting import duration, percent
from perfd.gpu_peaks import load_peaks
from perfd.report.display_names import kernel_name
from perfd.report.render import svg
from perfd.report.render.html import to_html
from perfd.report.render.markdown import to_markdown
from perfd.report.render.page_script import SCRIPT
from perfd.report.render.report_writer import write_report
from perfd.report.report_model import Bars, BarSegment, Report, ReportFinding
from perfd.report.sources.from_trace import report_of_trace
from perfd.trace.diagnosis.trace_analysis import TraceSettings, analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.readers.trace_files import read_traces
from tests.support import example_traces
from tests.support.traces import COMPUTE, MATMUL, NCCL, Call, NsysExport, Op, kineto, write_json

_EVIL = "<script>alert(1)</script>|`*_kernel"


class _Page(HTMLParser):
    """Tags that are open, what a page loads, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.loads += [value for name, value in attrs if name in {"src", "href", "xlink:href"}]
        if tag not in {"meta", "br", "line", "rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in {"line", "rect"}:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def _report(tmp_path):
    operations = [
        Op(MATMUL, 0, 400, launched=-5),
        Op(COMPUTE, 400, 500, launched=-4),
        Op(_EVIL, 500, 520, launched=-4),
        Op(NCCL, 450, 900, launched=-3),
    ]
    paths = [
        write_json(
            tmp_path / f"{rank}.json", kineto(operations, rank=rank, steps={1: (0, 1000), 2: (1000, 1010)})
        )
        for rank in (0, 1)
    ]
    analysis = analyse(read_traces(paths))
    return report_of_trace(analysis, diagnose(analysis))


def test_every_metric_figure_and_table_names_its_source(tmp_path):
    report = _report(tmp_path)

    sources = [one.source for one in (*report.metrics, *report.figures, *report.tables)]
    assert len(sources) > 10
    assert all("0.json" in source or "trace" in source for source in sources)


def test_metrics_and_bars_and_findings_name_one_idle_time_alike(tmp_path):
    # The host waits for the first kernel and only then launches the second: the GPU runs dry by that.
    operations = [Op(MATMUL, 0, 400, launched=-5), Op(COMPUTE, 600, 1000, launched=590)]
    calls = [Call("cudaStreamSynchronize", 20, 430)]
    path = write_json(tmp_path / "0.json", kineto(operations, calls=calls, steps={1: (0, 1000)}))
    analysis = analyse(read_traces([path]))
    report = report_of_trace(analysis, diagnose(analysis))
    (sync,) = [one.value for one in report.metrics if one.name == "Idle, synchronizing"]
    (bar,) = report.figures[0].rows
    (reported,) = [found for found in report.findings if found.title == "Host synchronization"]
    assert (
        sync
        == percent(next(part.ratio for part in bar if part.kind == "sync"))
        == percent(reported.gain_ratio)
    )
    table = next(table for table in report.tables if table.title == "Every rank")
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert cells["synchronizing"] == duration(190e-6)
    assert cells["not launched"] == duration(0.0)


def test_the_page_is_well_formed_and_needs_no_network(tmp_path):
    page = _Page(to_html(_report(tmp_path)))

    assert page.open == []
    assert page.loads == []
    assert {"svg", "table", "style"} <= page.tags
    assert to_html(_report(tmp_path)).count("<script") == 1
    assert f'<script type="module">{SCRIPT}</script>' in to_html(_report(tmp_path))


def test_a_table_that_scrolls_is_within_reach_of_the_keyboard(tmp_path):
    page = to_html(_report(tmp_path))

    assert page.count('class="scroll"') == page.count('role="region" tabindex="0" aria-label="') > 0


def test_names_of_kernels_do_not_become_markup(tmp_path):
    report = _report(tmp_path)

    assert "<script>alert" not in to_html(report)
    assert "<script>alert" not in to_markdown(report)
    assert _EVIL in "".join(_Page(to_html(report)).words)


def test_no_text_of_a_report_is_markup_or_acts_on_a_terminal_that_shows_it(tmp_path):
    evil = f"{_EVIL}[a](javascript:b)\x1b]0;title\x07\x9b2J\u202e"
    report = _report(tmp_path)
    finding = replace(report.findings[0], title=evil, culprits=evil, evidence=(evil,), advice=evil)
    table = replace(report.tables[0], title=evil, columns=(evil, *report.tables[0].columns[1:]))
    texts = {"title": evil, "subtitle": evil, "headline": evil, "summary": (evil,), "notes": (evil,)}
    report = replace(report, findings=(finding,), tables=(table,), **texts)

    for document in (to_html(report), to_markdown(report)):
        assert "<script>alert" not in document
        assert not set(document) & set("\x1b\x07\x9b\u202e")
        assert r"\x1b" in document
        assert r"\u202e" in document
    assert "[a](javascript:b)" not in to_markdown(report)


def test_commands_in_sentences_are_set_as_code_and_nothing_in_them_is_markup(tmp_path):
    report = replace(_report(tmp_path), notes=["Run `nsys --a=<b>` or `ncu`, not 5 ` of it."])
    page = to_html(report)

    assert "<li>Run <code>nsys --a=&lt;b&gt;</code> or <code>ncu</code>, not 5 ` of it.</li>" in page


def test_markdown_has_its_parts_in_order(tmp_path):
    lines = to_markdown(_report(tmp_path)).splitlines()

    headings = [line[3:] for line in lines if line.startswith("## ")]
    assert headings[:4] == ["Summary", "Metrics", "Findings", "Recommendations"]


def test_rows_of_markdown_tables_have_as_many_cells_as_their_head(tmp_path):
    width = None
    for line in to_markdown(_report(tmp_path)).splitlines():
        if not line.startswith("|"):
            width = None
            continue
        cells = line.replace("\\|", "").count("|")
        width = width or cells
        assert cells == width, line


def test_recommendations_come_by_what_there_is_to_gain(tmp_path):
    gains = [found.gain_ratio or 0 for found in _report(tmp_path).recommendations()]

    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0


def test_a_capture_that_lost_records_shows_what_is_not_known(tmp_path):
    export = NsysExport(tmp_path / "n.sqlite")
    export.kernel(COMPUTE, 50_000, 60_000, launched=49_000)
    export.kernel(COMPUTE, 90_000, 99_000, launched=89_000)
    export.lost("cudaLaunchKernel_v7000", 30)
    analysis = analyse(read_traces([export.close()]))

    page = to_html(report_of_trace(analysis, diagnose(analysis)))

    assert "not known (records lost)" in page
    assert "30 of 32 launches" in page


def test_analyze_writes_the_form_that_the_name_asks_for(tmp_path, capsys):
    trace = write_json(tmp_path / "t.json", kineto([Op(COMPUTE, 0, 10)]))

    assert main(["analyze", str(trace), "--report", str(tmp_path / "r.html")]) == 0
    assert main(["analyze", str(trace), "--report", str(tmp_path / "r.md")]) == 0
    assert main(["analyze", str(trace), "--report", str(tmp_path / "r.pdf")]) == 2

    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "r.md").read_text(encoding="utf-8").startswith("# ")
    assert "name it .md, .html or .json" in capsys.readouterr().err


def test_of_a_slow_rank_the_report_shows_the_cause_first_and_the_class_after_it(tmp_path):
    example_traces.main(tmp_path)
    analysis = analyse(read_traces(sorted(tmp_path.iterdir())))

    report = report_of_trace(analysis, diagnose(analysis))

    assert report.headline == "A straggler limits this job: rank 2."
    assert report.summary[0].startswith("Rank 2 computes 525.6 ms of 600.0 ms, its peers 396.0 ms")
    assert "for rank 2" in report.summary[1]
    assert report.tables[0].title == "Rank 2 compared with its peers"
    assert (
        "Largest part of the window: computation. What limits the job is in the headline." in report.summary
    )
    assert "Compare the kernels of rank 2" in next(one for one in report.summary if "Most to gain" in one)


def test_advice_says_how_long_a_step_takes_then_and_mfu_what_is_attainable(tmp_path):
    example_traces.main(tmp_path)
    settings = TraceSettings(model_flops_per_step=4e13, peaks=load_peaks())
    analysis = analyse(read_traces(sorted(tmp_path.iterdir())), settings)
    diagnosis = diagnose(analysis)

    report = report_of_trace(analysis, diagnosis)

    metrics = {metric.name: metric.value for metric in report.metrics}
    compute = diagnosis.shares.compute
    best = analysis.model_use.mfu_ratio / compute
    assert metrics["Attainable MFU"] == f"{best:.1%}"
    assert metrics["MFU tier"] == "low"
    assert any(f"of an attainable {best:.1%}" in sentence for sentence in report.summary)
    (first, *_) = report.recommendations()
    rest_s = report.step_time_s * (1 - first.gain_ratio)
    words = f"up to {first.gain_ratio:.1%}: a step of {rest_s * 1e3:.1f} ms at best"
    assert report.gain_words(first) == words
    assert words in to_html(report)
    assert words in to_markdown(report)


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(PerfdError, match="cannot be written"):
        write_report(_report(tmp_path), tmp_path / "none" / "r.md")


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    """The summary of a recording that ships."""
    path = tmp_path_factory.mktemp("summary") / "summary.json"
    with pytest.MonkeyPatch.context() as patch:
        written = []
        patch.setattr("sys.stdout.write", written.append)
        assert main(["replay", "dp4_slow2", "--speed", "max", "--json"]) == 0
    path.write_text("".join(written), encoding="utf-8")
    return path


def test_a_summary_makes_the_same_report_without_a_trace(summary, tmp_path, capsys):
    assert main(["report", str(summary)]) == 0
    assert main(["report", str(summary), "--output", str(tmp_path / "r.html")]) == 0

    text = capsys.readouterr().out
    assert "## Recommendations" in text
    assert "rank 2" in text
    assert _Page((tmp_path / "r.html").read_text(encoding="utf-8")).open == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", 'it has no list "traceEvents"'),
        ("[]", "no GPU operation"),
        ('{"schema": "perfd.summary/2"', "not a job summary, such as the summary.json"),
        ('{"schema": "perfd.trace/2"}', "not a job summary"),
        (
            '{"schema": "perfd.summary/1", "jobs": []}',
            "perfd.summary/1, and this perfd reads only perfd.summary/2",
        ),
        ('{"schema": "perfd.summary/2", "jobs": []}', "names no job"),
        ('{"schema": "perfd.summary/2", "jobs": [3]}', "not as perfd writes it"),
    ],
)
def test_what_is_neither_summary_nor_trace_is_one_sentence(tmp_path, capsys, content, words):
    path = tmp_path / "s.json"
    path.write_text(content, encoding="utf-8")

    assert main(["report", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_the_folder_of_a_run_stands_for_its_summary(summary, capsys):
    folder = str(summary.parent)
    (summary.parent / "summary.md").touch()

    assert main(["report", folder]) == 0
    assert "## Recommendations" in capsys.readouterr().out
    assert main(["compare", folder, folder]) == 0
    assert main(["diagnose", folder, "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out.splitlines()[-1])["jobs"]
    assert job["bottleneck"]["kind"] == "straggler"


def test_a_report_says_once_what_limits_the_job_and_who_is_to_blame(capsys):
    assert main(["report", "dp4_slow2"]) == 0
    slow = capsys.readouterr().out
    assert main(["report", "dp4"]) == 0
    healthy = capsys.readouterr().out

    assert "**A straggler limits this job: rank 2.**" in slow
    assert "**Computation limits this job.**" in healthy
    assert healthy.partition("## Metrics")[0].count("MFU is") == 1
    assert "Bubble" not in healthy


@pytest.mark.parametrize(("confidence", "advice"), [(0.0, "Log timers."), (0.6, "")])
def test_a_report_has_no_certainty_in_the_unknown_and_no_heading_without_advice(confidence, advice):
    found = ReportFinding(
        title="Unknown", evidence=["No timer."], advice=advice, gain_ratio=None, confidence=confidence
    )
    report = Report(title="Job", subtitle="", headline="Unknown.", summary=(), metrics=(), findings=[found])

    for text in (to_markdown(report), to_html(report)):
        assert ("Certainty: likely" in text) is (confidence > 0)
        assert ("Recommendations" in text) is bool(advice)


def test_a_report_says_what_its_total_of_communication_does_not_count(capsys):
    assert main(["report", "pp4_few"]) == 0

    reported = capsys.readouterr().out
    assert "| Communication | 0.6% |" in reported
    assert "not counting pp |" in reported
    assert "Alert PerfdPipelineStall fired at step 6 and is resolved." in reported


def test_a_recording_is_reported_on_by_its_name_and_has_no_traces(capsys):
    assert main(["report", "dp4_slow2"]) == 0
    assert "# How job dp4_slow2 runs" in capsys.readouterr().out
    assert main(["analyze", "dp4_slow2"]) == 2
    assert "ask `perfd diagnose dp4_slow2` or `perfd report dp4_slow2`" in capsys.readouterr().err


def test_a_job_that_the_summary_does_not_have_is_named_with_those_it_has(summary, capsys):
    name = json.loads(summary.read_text(encoding="utf-8"))["jobs"][0]["name"]

    assert main(["report", str(summary), "--job", "other"]) == 2
    assert name in capsys.readouterr().err


def test_names_of_kernels_lose_what_every_name_has():
    name = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::Add<float>>(int, T2)"

    assert kernel_name(name, 60) == "vectorized_elementwise_kernel<4, Add<float>>"
    assert kernel_name("(anonymous namespace)::softmax(int)", 60) == "softmax"
    assert kernel_name("Memcpy HtoD (Pageable -> Device)", 60) == "Memcpy HtoD (Pageable -> Device)"
    assert kernel_name("x" * 80, 20) == "x" * 17 + "..."


class _Aggregator(BaseHTTPRequestHandler):
    """Answers as an aggregator does for one job."""

    summary = b""

    def do_GET(self):
        known = self.path == "/api/v1/jobs/llama%2F3"
        body = self.summary if known else b'{"error": "There is no job."}'
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Say nothing."""


def test_a_live_job_is_reported_from_its_aggregator(summary, capsys):
    handler = type(
        "Handler", (_Aggregator,), {"summary": summary.read_bytes().replace(b'"dp4_slow2"', b'"llama/3"')}
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        found = main(["report", "--job", "llama/3", "--aggregator", url])
        other = main(["report", "--job", "other", "--aggregator", url])
        server.shutdown()
        thread.join()

    captured = capsys.readouterr()
    assert (found, other) == (0, 2)
    assert "# How job llama/3 runs" in captured.out
    assert "There is no job" in captured.err


def test_without_a_summary_or_a_job_there_is_nothing_to_report(capsys):
    assert main(["report"]) == 2
    assert "--job" in capsys.readouterr().err


def test_a_long_label_of_a_bar_has_room():
    label = "the busiest stage of them all"
    figure = Bars(title="t", source="s", labels=[label], rows=[[BarSegment(kind="compute", ratio=1.0)]])
    picture = ET.fromstring(svg.bars(figure))
    (text,) = [one for one in picture.iter("text") if one.text == label]
    assert float(text.get("x")) >= 6 * len(label), "it ends there and begins within the picture"


def test_the_verb_reports_on_a_trace_or_a_folder_of_them_too(tmp_path, capsys):
    (tmp_path / "c1").mkdir()
    for rank in (0, 1):
        trace = kineto([Op(MATMUL, 0, 400)], rank=rank, steps={1: (0, 1000)})
        write_json(tmp_path / "c1" / f"{rank}.json", trace)

    assert main(["report", str(tmp_path / "c1" / "0.json")]) == 0
    assert "1 rank on NVIDIA H200; 0.json" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "c1"), "-o", str(tmp_path / "r.html")]) == 0
    assert "2 ranks on NVIDIA H200" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert main(["report", str(tmp_path / "none")]) == 2
    assert (
        "none does not exist: name a summary, a trace, a recording, or the folder of a run."
        in capsys.readouterr().err
    )
