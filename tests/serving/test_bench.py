"""Results of bench_serving: of every variant, beside theory and the server's own numbers, and as a gate."""

from __future__ import annotations

import gc
import json
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from perfd_collectors.serving.bench_results import read_results
from serving.pages import LLAMA_70B, counter, gauge, histogram

from perfd.analysis.serving.engine_snapshot import Engine, Snapshot
from perfd.analysis.serving.observation_window import ObservationWindow
from perfd.cli import main
from perfd.net.http import HttpServer, Request, Response

SGLANG = {
    "backend": "sglang", "dataset_name": "random", "request_rate": math.inf, "max_concurrency": 200,
    "duration": 100.0, "completed": 1000, "total_input_tokens": 2_000_000, "total_output_tokens": 400_000,
    "request_throughput": 10.0, "input_throughput": 20_000.0, "output_throughput": 4000.0,
    "mean_ttft_ms": 300.0, "median_ttft_ms": 280.0, "p99_ttft_ms": 900.0, "mean_tpot_ms": 13.0,
    "median_tpot_ms": 12.0, "p99_tpot_ms": 45.0, "concurrency": 200.0,
}  # fmt: skip
VLLM_TEXT = """
============ Serving Benchmark Result ============
Successful requests:                     1000
Failed requests:                         3
Maximum request concurrency:             64
Request rate configured (RPS):           8.00
Benchmark duration (s):                  100.00
Total input tokens:                      2000000
Total generated tokens:                  400000
Request throughput (req/s):              10.00
Output token throughput (tok/s):         4000.00
Peak output token throughput (tok/s):    5000.00
---------------Time to First Token----------------
Mean TTFT (ms):                          300.00
Median TTFT (ms):                        280.00
P99 TTFT (ms):                           900.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          13.00
Median TPOT (ms):                        12.00
P90 TPOT (ms):                           20.00
P99 TPOT (ms):                           45.00
---------------Speculative Decoding---------------
Acceptance rate (%):                     80.00
Acceptance length:                       2.60
==================================================
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def one(name: str, *results: Mapping[str, object], indent: int | None = None) -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(result, indent=indent) + "\n" for result in results))
        return str(path)

    return one


def test_the_text_of_vllm_says_what_its_file_says() -> None:
    (text,) = read_results(VLLM_TEXT)
    said = {**SGLANG, "request_rate": 8.0, "max_concurrency": 64, "failed": 3, "p90_tpot_ms": 20.0}
    said |= {"spec_decode_acceptance_length": 2.6, "endpoint_type": "vllm"}
    del said["concurrency"], said["backend"], said["dataset_name"], said["input_throughput"]
    (file,) = read_results(json.dumps(said, indent=2))
    assert file.backend == "vllm"
    for name in ("request_rate_per_s", "max_concurrency", "failed_requests", "accept_length", "latencies"):
        assert getattr(file, name) == getattr(text, name), name
    assert text.input_tokens_per_s == 20_000.0


def test_requests_at_once_follow_from_rate_and_time_where_nobody_says_them() -> None:
    (text,) = read_results(VLLM_TEXT)
    # Little's law: 10 requests/s of 300 ms and 399 tokens of 13 ms each.
    assert text.concurrency == pytest.approx(10 * (0.3 + 399 * 0.013))


@pytest.mark.parametrize("rate", [math.inf, "inf", "Infinity", "trace", None, 4])
def test_a_rate_may_be_anything(rate: object) -> None:
    (found,) = read_results(json.dumps({**SGLANG, "request_rate": rate}))
    assert found.request_rate_per_s in {math.inf, 4.0, None}
    assert found.completed_requests == 1000.0


def test_a_result_is_put_beside_theory_at_its_concurrency(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write("config.json", LLAMA_70B)
    theory = ["--model-config", config, "--gpu", "H100", "--tp", "8"]
    assert main(["bench-serving", write("r.jsonl", SGLANG), "--json", *theory]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["request_rate_per_s"] == "inf"
    assert row["theory"]["tpot_at_concurrency_s"] == pytest.approx(12.6e-3, rel=0.02)
    assert row["theory"]["tpot_over_theory_ratio"] == pytest.approx(0.95, rel=0.02)
    assert main(["bench-serving", write("r.jsonl", SGLANG), *theory]) == 0
    shown = capsys.readouterr().out
    assert "12.6 ms" in shown
    assert "900.0 ms" in shown
    assert "24,000" in shown


def test_a_result_is_judged_like_a_server_at_its_load(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    theory = ["--model-config", write("config.json", LLAMA_70B), "--gpu", "H100", "--tp", "8"]

    def kinds(**changes: object) -> list[str]:
        assert main(["bench-serving", write("r.jsonl", {**SGLANG, **changes}), "--json", *theory]) == 0
        (row,) = json.loads(capsys.readouterr().out)["results"]
        return [finding["kind"] for finding in row["findings"]]

    assert kinds() == ["large_batch", "prefill_interference", "slow_prefill"]
    even = {"p99_tpot_ms": 13.0, "median_ttft_ms": 120.0}
    few = {"max_concurrency": 40, "concurrency": 40.0}
    assert kinds(**even, **few, median_tpot_ms=7.0) == []
    assert kinds(**even, **few, median_tpot_ms=12.0) == ["slow_decode"]
    calm = write("calm.jsonl", {**SGLANG, **even, **few, "median_tpot_ms": 7.0})
    assert main(["bench-serving", calm, *theory]) == 0
    assert "times theory" in capsys.readouterr().out
    assert main(["bench-serving", write("r.jsonl", SGLANG), *theory]) == 0
    assert "--max-running-requests" in capsys.readouterr().out


def gate(a: str, b: str, *more: str) -> int:
    return main(["compare", a, b, *more])


def test_a_run_that_is_slower_than_allowed_fails_the_gate(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write("a.jsonl", SGLANG)
    slower = write("b.jsonl", {**SGLANG, "output_throughput": 3800.0, "median_tpot_ms": 12.6})
    assert gate(before, before) == 0
    assert gate(before, slower) == 1
    assert gate(before, slower, "--max-regression", "10%") == 0
    assert gate(slower, before) == 0
    capsys.readouterr()
    assert gate(before, slower, "--json") == 1
    changes = {change["name"]: change for change in json.loads(capsys.readouterr().out)["changes"]}
    assert changes["output_tokens_per_s"]["verdict"] == "regressed"
    assert changes["tpot_p50_s"]["verdict"] == "regressed"
    assert changes["ttft_p50_s"]["verdict"] == "same"


def test_requests_that_failed_do_not_pass_for_speed(write: Write) -> None:
    fewer = {**SGLANG, "completed": 900, "median_tpot_ms": 9.0}
    fewer |= {"total_input_tokens": 1_800_000, "total_output_tokens": 360_000}
    assert gate(write("a.jsonl", SGLANG), write("b.jsonl", fewer)) == 1


def test_a_tail_alone_does_not_fail_the_gate(write: Write) -> None:
    assert gate(write("a.jsonl", SGLANG), write("b.jsonl", {**SGLANG, "p99_tpot_ms": 90.0})) == 0


def test_several_runs_of_one_load_count_by_their_median(write: Write) -> None:
    noisy = [{**SGLANG, "median_tpot_ms": value} for value in (12.0, 30.0, 12.1)]
    assert gate(write("a.jsonl", SGLANG), write("b.jsonl", *noisy)) == 0


def test_several_loads_are_compared_each_with_its_own(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    light = {**SGLANG, "request_rate": 4.0, "median_tpot_ms": 6.0}
    a = write("a.jsonl", SGLANG, light)
    assert gate(a, write("b.jsonl", {**light, "median_tpot_ms": 7.0}, SGLANG)) == 1
    assert "4.0 requests/s, 200 at once: tpot_p50_s" in capsys.readouterr().out
    assert gate(a, write("c.jsonl", SGLANG)) == 2
    assert "has no run at 4.0 requests/s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_concurrency": 8}, "no run at inf requests/s, 200 at once"),
        ({"total_input_tokens": 4_000_000}, "prompts of 2000 tokens and of 4000"),
        ({"dataset_name": "sharegpt"}, "of random and of sharegpt"),
    ],
)
def test_other_requests_are_not_compared(
    write: Write, capsys: pytest.CaptureFixture[str], change: Mapping[str, object], words: str
) -> None:
    assert gate(write("a.jsonl", SGLANG), write("b.jsonl", {**SGLANG, **change})) == 2
    assert words in capsys.readouterr().err


def test_a_benchmark_is_not_compared_with_something_else(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write("s.json", {"schema": "perfd.summary/2", "jobs": []})
    assert gate(write("a.jsonl", SGLANG), other) == 2
    assert "compare like with like" in capsys.readouterr().err


def test_what_the_verb_printed_can_be_compared_too(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = write("a.jsonl", SGLANG)
    assert main(["bench-serving", result, "--json"]) == 0
    document = tmp_path / "a.json"
    document.write_text(capsys.readouterr().out)
    assert gate(str(document), result) == 0


@pytest.mark.parametrize("results", [None, 5, [], [5], [{"max_concurrency": "x"}], [{"ttft_s": 3}]])
def test_what_the_verb_did_not_print_like_that_is_one_sentence(
    write: Write, capsys: pytest.CaptureFixture[str], results: object
) -> None:
    damaged = write("b.json", {"schema": "perfd.bench_serving/1", "results": results})
    assert gate(damaged, damaged) == 2
    assert capsys.readouterr().err.startswith(f"perfd compare: {damaged}: the")


class Engines:
    """A server that makes tokens when it is told to."""

    def __init__(self) -> None:
        self.tokens = 0.0
        self.http = HttpServer("127.0.0.1:0", {"/metrics": self.page, "/work": self.work})

    def page(self, _: Request) -> Response:
        labels = {"model_name": "m"}
        count = self.tokens / 10
        text = (
            gauge("sglang:num_running_reqs", (labels, 0))
            + counter("sglang:realtime_tokens_total", ({**labels, "mode": "decode"}, self.tokens))
            + histogram("sglang:inter_token_latency_seconds", labels, (0.01, 0.02, math.inf),
                        (0, count, count), count * 0.015)
        )  # fmt: skip
        return Response(body=text.encode())

    def work(self, _: Request) -> Response:
        self.tokens += 1000.0
        return Response(body=b"")


@pytest.fixture
def engines() -> Iterator[Engines]:
    made = Engines()
    yield made
    made.http.close()


BENCHMARK = """
import json, sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/work").read()
print("Warmup completed")
open(sys.argv[2], "a").write(sys.argv[3] + "\\n")
"""


def test_a_benchmark_that_is_run_stands_beside_what_the_server_says_of_the_same_time(
    write: Write, engines: Engines, capfd: pytest.CaptureFixture[str]
) -> None:
    engines.tokens = 70_000.0
    result, url = write("r.jsonl", {**SGLANG, "completed": 7}), f"http://{engines.http.address}"
    command = [sys.executable, "-c", BENCHMARK, url, result, json.dumps(SGLANG)]
    assert main(["bench-serving", result, "--json", "--watch", url, "--run", *command]) == 0
    # The benchmark's own words do not spoil the document, and older results are left out.
    (row,) = json.loads(capfd.readouterr().out)["results"]
    assert row["completed_requests"] == 1000.0
    assert row["seen"]["engine"] == "sglang"
    assert row["seen"]["tpot_s"]["mean"] == pytest.approx(0.015)
    assert row["seen"]["generation_tokens_per_s"] > 0
    assert main(["bench-serving", result, "--watch", url, "--run", *command]) == 0
    out = capfd.readouterr().out
    assert "Warmup completed" in out
    assert "sglang's own" in out


def test_a_benchmark_that_writes_its_file_anew_is_the_result(
    write: Write, engines: Engines, capfd: pytest.CaptureFixture[str]
) -> None:
    result, url = write("r.json", {**SGLANG, "completed": 7}), f"http://{engines.http.address}"
    anew = BENCHMARK.replace('"a"', '"w"')
    command = [sys.executable, "-c", anew, url, result, json.dumps(SGLANG)]
    assert main(["bench-serving", result, "--json", "--watch", url, "--run", *command]) == 0
    (row,) = json.loads(capfd.readouterr().out)["results"]
    assert row["completed_requests"] == 1000.0


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ([sys.executable, "-c", "raise SystemExit(3)"], 3, "exit code 3"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 137, "exit code 137"),
        (["/nowhere/bench"], 2, "cannot be run"),
        ([sys.executable, "-c", ""], 2, "has no result of this run"),
    ],
)
def test_a_benchmark_that_fails_is_no_result(
    write: Write,
    engines: Engines,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    code: int,
    words: str,
) -> None:
    result, url = write("r.jsonl", SGLANG), f"http://{engines.http.address}"
    assert main(["bench-serving", result, "--watch", url, "--run", *command]) == code
    assert words in capsys.readouterr().err


def test_a_server_and_what_measures_it_belong_together(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench-serving", write("r.jsonl", SGLANG), "--watch", "http://127.0.0.1:1"]) == 2
    assert "belong together" in capsys.readouterr().err


def look(running: float) -> Snapshot:
    return Snapshot(engine=Engine.SGLANG, running_requests=running, kv_used_tokens=running * 100)


def test_gauges_of_a_window_are_means_while_requests_ran() -> None:
    window = ObservationWindow(look(0.0))
    for running in (100.0, 300.0, 0.0):
        window.add(look(running))
    now = window.measured(3.0).now
    assert (now.running_requests, now.kv_used_tokens) == (200.0, 20_000.0)


class Counted(Snapshot):
    """A snapshot of which one can tell whether it is still held: it has no slots."""


def test_a_window_of_any_length_holds_the_last_look_beside_the_first() -> None:
    window = ObservationWindow(look(0.0))
    alive = []
    for number in range(1000):
        one = Counted(engine=Engine.SGLANG, running_requests=1.0 + number)
        alive.append(weakref.ref(one))
        window.add(one)
    del one
    gc.collect()
    assert [at for at, seen in enumerate(alive) if seen() is not None] == [999]
    assert window.measured(1000.0).now.running_requests == pytest.approx(500.5)
