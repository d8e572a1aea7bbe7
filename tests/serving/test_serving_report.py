"""`perfd report` of saved metrics and of results of a benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfd.cli import main

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
THEORY = ["--gpu", "H100", "--tp", "8", "--model-config", str(EXAMPLES / "llama-70b.config.json")]
BENCHMARK = {
    "backend": "sglang",
    "completed": 100,
    "duration": 50.0,
    "request_throughput": 2.0,
    "output_throughput": 512.0,
    "input_throughput": 2048.0,
    "total_input_tokens": 102_400,
    "total_output_tokens": 25_600,
    "concurrency": 8.0,
    "mean_ttft_ms": 1500.0,
    "median_ttft_ms": 1444.0,
    "p99_ttft_ms": 3000.0,
    "mean_tpot_ms": 14.0,
    "median_tpot_ms": 13.0,
    "p99_tpot_ms": 20.0,
}


def reported(capsys, *arguments):
    assert main(["report", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_saved_metrics_become_a_report_of_four_parts(capsys, tmp_path):
    page = EXAMPLES / "serving-70b.prom"
    report = reported(capsys, page, *THEORY)

    assert report["headline"] == "A large batch slows decode down."
    metrics = {one["name"]: one["value"] for one in report["metrics"]}
    assert (metrics["Running requests"], metrics["Least TPOT of one sequence"]) == ("200", "5.2 ms")
    assert [finding["title"] for finding in report["findings"]] == ["Large batch", "Prefill interference"]
    assert main(["report", str(page), *THEORY, "--output", str(tmp_path / "server.md")]) == 0
    text = (tmp_path / "server.md").read_text()
    parts = [text.index(f"## {part}") for part in ("Summary", "Metrics", "Findings", "Recommendations")]
    assert parts == sorted(parts)


def test_a_benchmark_becomes_a_report_with_totals_and_p99(capsys, tmp_path):
    path = tmp_path / "result.jsonl"
    path.write_text(json.dumps(BENCHMARK) + "\n")
    report = reported(capsys, path, *THEORY)

    metrics = {one["name"]: one["value"] for one in report["metrics"]}
    assert (metrics["Completed requests"], metrics["Duration"], metrics["Prompt tokens/s"]) == (
        "100",
        "50.0 s",
        "2,048",
    )
    (table,) = report["tables"]
    latencies = {row[0]: row[1:] for row in table["rows"]}
    assert (latencies["TTFT"][0], latencies["TTFT"][2]) == ("1444.0 ms", "3000.0 ms")
    assert latencies["TPOT"][2] == "20.0 ms"
    assert "Slow prefill" in {finding["title"] for finding in report["findings"]}


@pytest.mark.parametrize("content", ["# TYPE x gauge\nx 1\n", "hello"])
def test_what_is_no_server_is_one_sentence(content, tmp_path, capsys):
    path = tmp_path / "page.prom"
    path.write_text(content)
    assert main(["report", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
