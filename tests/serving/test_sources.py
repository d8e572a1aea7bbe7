"""Pages and logs of each version, and results of the benchmark."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.serving.bench_results import read_results
from perfd_collectors.serving.engine_logs import read_log
from perfd_collectors.serving.exposition_reader import PageReader
from perfd_collectors.serving.server_scrape import FAMILIES, read_page
from serving.pages import counter, gauge, histogram

from perfd.analysis.serving.engine_snapshot import Counter, Latency, Snapshot
from perfd.analysis.serving.histograms import distribution

RECORDED = Path(__file__).parents[1] / "fixtures" / "serving"
SHARED = os.environ.get("PERFD_SHARED")
needs_samples = pytest.mark.skipif(not SHARED, reason="PERFD_SHARED does not name the shared samples")


def samples(pattern: str) -> list[Path]:
    return sorted((Path(SHARED) / "samples").glob(pattern)) if SHARED else []


def snapshot(text: str):
    return read_page(PageReader(FAMILIES), text.encode(), "page")


def test_replicas_add_up_and_shards_of_one_count_once() -> None:
    def labels(dp: int, tp: int) -> dict[str, str]:
        return {"model_name": "m", "dp_rank": str(dp), "tp_rank": str(tp)}

    ranks = [(0, 0), (0, 1), (1, 2), (1, 3)]
    found = snapshot(gauge("sglang:num_running_reqs", *((labels(dp, tp), 4.0 + dp) for dp, tp in ranks)))
    assert found.running_requests == 9.0
    assert [load.running_requests for load in found.replicas] == [4.0, 5.0]


def test_processes_that_are_gone_do_not_add_up() -> None:
    pids = [({"model_name": "m", "pid": str(pid)}, 3.0) for pid in (1, 2)]
    assert snapshot(gauge("sglang:num_running_reqs", *pids)).running_requests == 3.0


def test_requests_by_priority_are_not_added_to_their_total() -> None:
    def labels(priority: str) -> dict[str, str]:
        return {"model_name": "m", "priority": priority}

    running = gauge("sglang:num_running_reqs", (labels(""), 7), (labels("0"), 3), (labels("1"), 4))
    made = counter("sglang:generation_tokens_total", (labels(""), 10), (labels("1"), 20))
    found = snapshot(running + made)
    assert found.running_requests == 7.0
    # Counters have no total: each request counts under its own priority.
    assert found.counters[Counter.GENERATION_TOKENS] == 30.0


def test_gauges_that_freeze_in_an_idle_server_are_unknown() -> None:
    model = {"model_name": "m"}
    text = gauge("sglang:num_queue_reqs", (model, 0)) + gauge("sglang:gen_throughput", (model, 900))
    idle = snapshot(gauge("sglang:num_running_reqs", (model, 0)) + text)
    busy = snapshot(gauge("sglang:num_running_reqs", (model, 2)) + text)
    assert (idle.reported_generation_tokens_per_s, busy.reported_generation_tokens_per_s) == (None, 900.0)


def test_nan_is_no_value() -> None:
    text = gauge("sglang:num_running_reqs", ({}, 1)) + gauge("sglang:fwd_occupancy", ({}, math.nan))
    assert snapshot(text).forward_occupancy_ratio is None


@pytest.mark.parametrize("bound", [5e-324, 1e300, math.nan])
def test_a_histogram_with_a_bound_that_cannot_be_is_none(bound: float) -> None:
    bounds = (bound, 0.5, math.inf)
    found = snapshot(
        gauge("sglang:num_running_reqs", ({}, 1))
        + histogram("sglang:time_to_first_token_seconds", {}, bounds, (1, 2, 3), 1.0)
    )
    assert found.histograms == {}


NUMBERS = st.lists(
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1.0, 0.0, 5e-324, 7.0]) | st.floats(),
    min_size=6,
    max_size=6,
)


@given(NUMBERS, st.sampled_from(["0", "\u00b2", "9" * 5000, "-1", ""]))
def test_whatever_numbers_a_page_has_what_is_made_of_them_is_finite(numbers: list[float], rank: str) -> None:
    labels = {"model_name": "m", "tp_rank": rank}
    *counts, total = numbers
    found = snapshot(
        gauge("sglang:num_running_reqs", (labels, counts[0]), ({**labels, "dp_rank": "1"}, counts[1]))
        + counter("sglang:generation_tokens_total", (labels, counts[2]))
        + histogram(
            "sglang:time_to_first_token_seconds", labels, (0.1, 0.5, 1.0, 4.0, math.inf), counts, total
        )
    )
    ttft = distribution(found.histograms.get(Latency.TTFT))
    made = [found.running_requests, *found.counters.values(), ttft.p50, ttft.p90, ttft.p99, ttft.mean]
    assert all(math.isfinite(number) for number in made if number is not None)


@pytest.mark.parametrize(
    ("usage", "latency", "suffix"),
    [
        ("vllm:gpu_cache_usage_perc", "vllm:time_per_output_token_seconds", "gpu_prefix_cache"),
        ("vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds", "prefix_cache"),
    ],
    ids=["0.8", "0.33"],
)
def test_both_generations_of_vllm_give_the_same(usage: str, latency: str, suffix: str) -> None:
    engines = [{"model_name": "m", "engine": str(engine)} for engine in range(2)]
    text = (
        gauge("vllm:num_requests_running", *((labels, 5) for labels in engines))
        + gauge(usage, *((labels, 0.5) for labels in engines))
        + counter(f"vllm:{suffix}_hits_total", *((labels, 10) for labels in engines))
        + counter(f"vllm:{suffix}_queries_total", *((labels, 40) for labels in engines))
        + histogram(latency, engines[0], (0.1, math.inf), (4, 4), 0.2)
        + histogram("vllm:iteration_tokens_total", engines[0], (8, math.inf), (4, 4), 9)
    )
    found = snapshot(text)
    assert (found.running_requests, found.kv_cache_used_ratio) == (10.0, 0.5)
    assert found.counters[Counter.CACHE_QUERY_TOKENS] == 80.0
    assert found.histograms[Latency.ITL].count == 4


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.prom.gz")), ids=lambda path: path.name)
def test_pages_of_each_release_say_what_was_put_into_its_own_metric_code(path: Path) -> None:
    """Recorded by `python -m benchmarks.serving_releases --record`."""
    expected = json.loads((path.parent / f"{path.name.removesuffix('.prom.gz')}.json").read_text())
    found = quantities(read_page(PageReader(FAMILIES), gzip.decompress(path.read_bytes()), path.name))
    for name, value in expected.items():
        assert found.get(name) == (pytest.approx(value) if not isinstance(value, str) else value), name


def test_pages_are_recorded_of_as_many_releases_as_are_promised() -> None:
    releases = [path.name for path in RECORDED.glob("*.prom.gz")]
    assert sum(name.startswith("sglang-") for name in releases) >= 4
    assert sum(name.startswith("vllm-") for name in releases) >= 3


def quantities(snapshot: Snapshot) -> Mapping[str, object]:
    plain = {name: getattr(snapshot, name) for name in snapshot.__slots__}
    counters = {str(name): value for name, value in snapshot.counters.items()}
    return {**plain, **counters, **{name: [h.count, h.sum] for name, h in snapshot.histograms.items()}}


@needs_samples
@pytest.mark.parametrize("path", samples("sglang-*.prom"), ids=lambda path: path.name)
def test_pages_of_each_release_of_sglang_say_the_same(path: Path) -> None:
    found = read_page(PageReader(FAMILIES), path.read_bytes(), path.name)
    assert (found.model, found.running_requests, found.queued_requests) == ("Qwen/Qwen3-8B", 12.0, 3.0)
    assert (found.kv_cache_used_ratio, found.reported_prefix_hit_ratio) == (0.42, 0.31)
    assert found.reported_generation_tokens_per_s == 1834.55
    assert found.counters[Counter.GENERATION_TOKENS] == 128.0
    assert found.histograms[Latency.TTFT].sum == 0.12


@needs_samples
@pytest.mark.parametrize(
    "path", [*samples("sglang-0*.log"), *samples("vllm*.log")], ids=lambda path: path.name
)
def test_logs_that_people_posted_are_understood(path: Path) -> None:
    log = read_log(path.read_text(errors="replace").splitlines())
    assert log is not None
    assert log.unrecognized == 0


SGLANG_LINES = [
    (
        "[12:00:00 TP0] Decode batch. #running-req: 8, #token: 99, token usage: 0.13, "
        "gen throughput (token/s): 50.5, #queue-req: 2"
    ),
    (
        "(Worker pid=3) [2026-01-01 00:00:00.123 DP0 PP0 TP0] Decode batch [17], #running-req: 8, "
        "#full token: 99, full token usage: 0.13, #swa token: 9, swa token usage: 0.02, cuda graph: True, "
        "gen throughput (token/s): 50.5, #queue-req: 2, "
    ),
    (
        "[2027-01-01 00:00:00] Decode batch, #running-req: 8, token usage: 0.13, x: [1, 2], "
        "gen throughput (token/s): 50.5, #queue-req: 2, fwd occupancy: 93.1%, #new-kind: ?"
    ),
]


@pytest.mark.parametrize("line", SGLANG_LINES, ids=["0.4", "0.5.4", "tomorrow"])
def test_a_decode_line_of_any_release_says_the_same(line: str) -> None:
    log = read_log([line])
    assert log is not None
    found = log.snapshot()
    assert found is not None
    assert (found.running_requests, found.queued_requests) == (8.0, 2.0)
    assert (found.kv_cache_used_ratio, found.reported_generation_tokens_per_s) == (0.13, 50.5)


def test_a_line_that_lost_its_keys_is_counted_and_gives_nothing() -> None:
    log = read_log([SGLANG_LINES[0], "[12:00:00] Decode batch, running: 8"])
    assert log is not None
    assert log.unrecognized == 1


@given(st.text(max_size=200))
def test_any_line_is_read_without_an_error(text: str) -> None:
    read_log([text, "[12:00:00] Decode batch, " + text, "Engine 000: Avg prompt throughput: " + text])


def test_a_result_with_an_infinite_rate_is_read() -> None:
    said = {
        "backend": "vllm",
        "completed": 10,
        "duration": 2.0,
        "request_rate": math.inf,
        "p99_tpot_ms": 40.0,
    }
    (result,) = read_results(json.dumps(said) + "\n" + json.dumps(said)[:20])
    assert result.request_rate_per_s == math.inf
    assert result.latencies["tpot"].p99 == 0.04


def test_the_text_of_old_releases_with_its_misspelling_is_read() -> None:
    text = (
        "============ Serving Benchmark Result ============\n"
        "Max reqeuest concurrency:                16        \n"
        "Successful requests:                     10\nTotal input tokens: 5000\n"
        "---------------Time to First Token----------------\nMedian TTFT (ms):    44.5\n"
    )
    (result,) = read_results(text)
    assert (result.max_concurrency, result.mean_prompt_tokens) == (16.0, 500.0)
    assert result.latencies["ttft"].p50 == 0.0445


@given(st.text(max_size=300))
def test_any_text_is_no_result_or_one_without_an_error(text: str) -> None:
    read_results("== Serving Benchmark Result ==\n" + text)
    read_results("{" + text)
