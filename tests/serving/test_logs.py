"""Lines of each release of the engines, of tomorrow's, and logs that are cut, rotated or very long."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.serving.engine_logs import FollowedLog, read_log

from perfd.analysis.serving.engine_snapshot import Engine, Latency, Snapshot
from perfd.analysis.serving.server_rates import measure
from perfd.cli import main

DECODE = {
    "0.2.15": "[12:00:00 TP0] Decode batch. #running-req: {run}, #token: {token}, token usage: {use:.2f}, "
    "gen throughput (token/s): {gen:.2f}, #queue-req: {queue}",
    "0.4.3 with speculation": "[2026-01-01 00:00:00 TP0] Decode batch. #running-req: {run}, #token: {token}, "
    "token usage: {use:.2f}, accept len: 2.50, gen throughput (token/s): {gen:.2f}, #queue-req: {queue}",
    "0.4.6": "[2026-01-01 00:00:00 DP0 TP0] Decode batch. #running-req: {run}, #token: {token}, "
    "token usage: {use:.2f}, pre-allocated usage: 0.99, cuda graph: True, "
    "gen throughput (token/s): {gen:.2f}, #queue-req: {queue}",
    "0.5.1 with a sliding window": "[2026-01-01 00:00:00 TP0] Decode batch. #running-req: {run}, "
    "#full token: {token}, full token usage: {use:.2f}, #swa token: 1, swa token usage: 0.00, "
    "cuda graph: True, gen throughput (token/s): {gen:.2f}, #queue-req: {queue}, ",
    "0.5.4": "[2026-01-01 00:00:00 TP0] Decode batch [17], #running-req: {run}, #token: {token}, "
    "token usage: {use:.2f}, accept len: 2.50, accept rate: 0.50, #transfer-req: 1, #retracted-req: 2, "
    "cuda graph: True, gen throughput (token/s): {gen:.2f}, #queue-req: {queue}, ",
    "0.5.12": "(Worker pid=3, ip=10.0.0.1) [2026-01-01 00:00:00.123 DP0 PP0 ATTN_CP0 MOE_DP0 TP0 EP0] "
    "Decode batch, #running-req: {run}, #token: {token}, token usage: {use:.2f}, cuda graph: True, "
    "gen throughput (token/s): {gen:.2f}, #queue-req: {queue}, est. decode TFLOPS/s (per GPU): 9.10, "
    "est. read BW (GB/s per GPU): 2000.50, est. write BW (GB/s per GPU): 7.20, fwd occupancy: nan%",
    "0.5.6 by another logger": "2026-01-01T00:00:00.250907Z  INFO scheduler.log_decode_stats: "
    "Decode batch, #running-req: {run}, #token: {token}, token usage: {use:.2f}, cuda graph: True, "
    "gen throughput (token/s): {gen:.2f}, #queue-req: {queue}, ",
    "0.5.23 with Mamba": "[2026-01-01 00:00:00] Decode batch [9], #running-req: {run}, #full token: {token}, "
    "full token usage: {use:.2f}, mamba num: 3, mamba usage: 0.00, accept len: 2.50, accept rate: 0.50, "
    "cap len: 3.00, block accept len: 1.00, npu graph: True, gen throughput (token/s): {gen:.2f}, "
    "#queue-req: {queue}, fwd occupancy: 93.10%, fwd+idle occupancy: 99.00%",
}
VLLM = {
    "V0": "INFO 03-09 02:05:27 metrics.py:455] Avg prompt throughput: {prompt:.1f} tokens/s, "
    "Avg generation throughput: {gen:.1f} tokens/s, Running: {run} reqs, Swapped: 0 reqs, "
    "Pending: {queue} reqs, GPU KV cache usage: {percent:.1f}%, CPU KV cache usage: 88.0%.",
    "0.8": "INFO 03-09 02:05:27 [loggers.py:111] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
    "Avg generation throughput: {gen:.1f} tokens/s, Running: {run} reqs, Waiting: {queue} reqs, "
    "GPU KV cache usage: {percent:.1f}%, Prefix cache hit rate: 43.8%",
    "0.33": "(APIServer pid=1) INFO 03-09 02:05:27 [v1/metrics/loggers.py:259] 3 Engines Aggregated: "
    "Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: {gen:.1f} tokens/s, "
    "Running: {run} reqs, Waiting: {queue} reqs, Deferred: 2 reqs, Preemptions: 1, "
    "XPU KV cache usage: {percent:.1f}%, Prefix cache hit rate: 43.8%, External prefix cache hit rate: 1.0%, "
    "MM cache hit rate: 0.0%",
}


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, float]:
    return {
        "run": draw(st.integers(1, 4096)),
        "queue": draw(st.integers(0, 10_000)),
        "token": draw(st.integers(0, 10**7)),
        "use": draw(st.integers(0, 100)) / 100,
        "percent": draw(st.integers(0, 1000)) / 10,
        "gen": draw(st.integers(0, 10**6)) / 10,
        "prompt": draw(st.integers(0, 10**6)) / 10,
    }


def seen(*lines: str) -> Snapshot:
    log = read_log(lines)
    assert log is not None
    assert log.unrecognized == 0
    found = log.snapshot()
    assert found is not None
    return found


@pytest.mark.parametrize("release", DECODE)
@given(said=numbers())
def test_a_decode_line_of_any_release_of_sglang_is_read_as_it_was_written(
    release: str, said: dict[str, float]
) -> None:
    found = seen(DECODE[release].format(**said))
    assert found.engine is Engine.SGLANG
    assert (found.running_requests, found.queued_requests) == (said["run"], said["queue"])
    assert (found.kv_used_tokens, found.kv_cache_used_ratio) == (said["token"], said["use"])
    assert found.reported_generation_tokens_per_s == said["gen"]


@pytest.mark.parametrize("release", VLLM)
@given(said=numbers())
def test_a_line_of_any_release_of_vllm_is_read_as_it_was_written(
    release: str, said: dict[str, float]
) -> None:
    found = seen(VLLM[release].format(**said))
    assert found.engine is Engine.VLLM
    assert (found.running_requests, found.queued_requests) == (said["run"], said["queue"])
    assert found.kv_cache_used_ratio == pytest.approx(said["percent"] / 100)
    assert found.reported_generation_tokens_per_s == said["gen"]
    assert found.reported_prompt_tokens_per_s == said["prompt"]


WORDS = st.text(
    st.characters(codec="ascii", categories=("L", "N"), include_characters=" -#/()[]?%"), max_size=20
)


@given(said=numbers(), extra=st.lists(st.tuples(WORDS, WORDS), max_size=4), order=st.randoms())
def test_fields_of_tomorrow_in_any_order_change_nothing(said, extra, order) -> None:
    head, _, rest = DECODE["0.5.12"].format(**said).partition("Decode batch, ")
    fields = [*rest.split(", "), *(f"x{key.strip()}y: {value}" for key, value in extra)]
    order.shuffle(fields)
    found = seen(f"{head}Decode batch, {', '.join(fields)}")
    assert (found.running_requests, found.queued_requests) == (said["run"], said["queue"])
    assert found.reported_generation_tokens_per_s == said["gen"]


def test_a_log_of_tomorrow_is_distinguished_from_one_that_is_not_understood(capsys, tmp_path) -> None:
    log = tmp_path / "server.log"
    old = DECODE["0.5.23 with Mamba"].format(run=3, queue=0, token=10, use=0.1, gen=20.0)
    log.write_text(f"{old}\n[2027-01-01 00:00:00] Decode batch, active: 9 of 12\n")
    assert main(["serving", str(log)]) == 0
    out = capsys.readouterr().out
    assert "3 running" in out
    assert "1 lines look like batches of an unknown SGLang version" in " ".join(out.split())


def test_what_an_engine_estimates_of_its_own_use_is_a_check() -> None:
    said = {"run": 8, "queue": 0, "token": 5, "use": 0.1, "percent": 10.0, "gen": 20.0, "prompt": 1.0}
    sglang = measure(seen(DECODE["0.5.12"].format(**said)))
    assert sglang.estimated_flops_per_s_per_gpu == pytest.approx(9.1e12)
    assert sglang.estimated_read_bytes_per_s_per_gpu == pytest.approx(2000.5e9)
    line = VLLM["0.8"].format(**said)
    apart = measure(
        seen(line, "INFO 12-15 17:38:18 [perf.py:1] Engine 000: MFU: 6.6 TF/s/device 105.0 GB/s/device")
    )
    joined = measure(seen(f"{line}, MFU: 6.6 TF/s/GPU 105.0 GB/s/GPU"))
    for vllm in (apart, joined):
        assert vllm.estimated_flops_per_s_per_gpu == pytest.approx(6.6e12)
        assert vllm.now.running_requests == 8.0


def test_ranks_of_data_parallelism_add_up_and_the_newest_line_of_each_counts() -> None:
    line = (
        "[2026-01-01 00:00:00 DP{dp} TP0] Decode batch, #running-req: {run}, #token: 5, token usage: 0.50, "
    )
    line += "gen throughput (token/s): {gen}, #queue-req: 1"
    said = ((0, 9, 900), (1, 4, 40), (0, 6, 60))
    found = seen(*(line.format(dp=dp, run=run, gen=gen) for dp, run, gen in said))
    assert (found.running_requests, found.reported_generation_tokens_per_s) == (10.0, 100.0)
    assert [load.running_requests for load in found.replicas] == [6.0, 4.0]


def test_prefill_lines_show_the_share_of_the_prefix_cache() -> None:
    line = "[2026-01-01 00:00:00] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, "
    line += "token usage: 0.10, #running-req: 2, #queue-req: 0, cuda graph: False, "
    found = seen(
        line.format(new=75, cached=25) + "input throughput (token/s): 80.00",
        line.format(new=75, cached=225) + "input throughput (token/s): 90.00",
    )
    assert measure(found).prefix_hit_ratio == 250 / 400
    assert found.reported_prompt_tokens_per_s == 90.0


MINI = "\x1b[1m[2026-11-21|01:49:03|{where}]\x1b[0m \x1b[32mINFO    \x1b[0m {words}"


def test_mini_sglang_says_when_it_is_idle_and_what_a_benchmark_measured() -> None:
    idle = seen(MINI.format(where="core|rank=0", words="Scheduler is idle, waiting for new reqs..."))
    assert (idle.engine, idle.running_requests) == (Engine.MINI_SGLANG, 0.0)
    done = seen(
        MINI.format(where="core|rank=0", words="Scheduler is idle, waiting for new reqs..."),
        MINI.format(where="client.py", words="TTFT:  44.50 ms (p50: 40.00, p90: 60.00, p99: 90.00, max: 99)"),
        MINI.format(where="client.py", words="TPOT:  6.10 ms (p50: 6.00, p90: 7.00, p99: 9.00, max: 10.00)"),
        MINI.format(where="client.py", words="E2E: 3.00 s (p50: 2.90, p90: 3.50, p99: 4.00, max: 5.00)"),
        MINI.format(where="client.py", words="Throughput:  18423 token/s,  35.98 req/s"),
    )  # fmt: skip
    # It wrote something since it was idle, and nothing tells how much runs.
    assert done.running_requests is None
    assert done.reported_generation_tokens_per_s == 18423.0
    assert done.latencies[Latency.TTFT].p99 == pytest.approx(0.09)
    assert done.latencies[Latency.TPOT].p50 == pytest.approx(0.006)
    assert done.latencies[Latency.E2E].p90 == pytest.approx(3.5)


def line(run: int) -> bytes:
    return DECODE["0.5.12"].format(run=run, queue=0, token=10, use=0.1, gen=20.0).encode() + b"\n"


@given(cuts=st.lists(st.integers(0, 1200), max_size=6))
def test_a_log_that_grows_in_pieces_is_read_by_whole_lines(cuts: list[int], tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("log") / "server.log"
    body, followed = line(11) + line(22) + line(33), FollowedLog(path)
    running: set[float | None] = set()
    for end in [*sorted(cut for cut in cuts if cut < len(body)), len(body)]:
        path.write_bytes(body[:end])
        found = followed.read()
        if found is not None:
            running.add(found.running_requests)
    assert running <= {11.0, 22.0, 33.0}
    assert 33.0 in running


def test_a_log_that_is_rotated_or_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    followed = FollowedLog(path)
    assert followed.read() is None
    path.write_bytes(line(1))
    path.rename(tmp_path / "server.log.1")
    path.write_bytes(line(2) + line(3))
    assert (found := followed.read()) is not None
    assert found.running_requests == 3.0
    path.write_bytes(line(4))
    assert (found := followed.read()) is not None
    assert found.running_requests == 4.0


def test_a_log_that_is_long_already_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(line(1) + b"INFO: 10.0.0.1 - POST /generate 200 OK\n" * 200_000 + line(9))
    followed = FollowedLog(path)
    assert (found := followed.read()) is not None
    assert found.running_requests == 9.0
    with path.open("ab") as file:
        file.write(line(10))
    assert (found := followed.read()) is not None
    assert found.running_requests == 10.0


def test_the_last_line_of_a_saved_log_counts_only_when_it_has_an_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(line(7) + line(123)[:130])
    assert main(["serving", str(log)]) == 0
    assert "7 running" in capsys.readouterr().out


def test_of_a_long_log_the_start_and_the_end_are_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    arguments = "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='/models/m', tp_size=8, dp_size=1)\n"
    with log.open("wb") as file:
        file.write(arguments.encode() + line(1))
        file.write(b"INFO: 10.0.0.1 - POST /generate 200 OK\n" * 1_500_000)
        file.write(line(9))
    assert main(["serving", str(log)]) == 0
    out = capsys.readouterr().out
    assert "/models/m" in out
    assert "9 running" in out


def test_what_is_cut_where_a_long_log_is_left_out_is_no_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    access, whole = b"INFO: 10.0.0.1 - POST /generate 200 OK\n", line(4321)
    cut = len(line(0)) - len(line(0).partition(b"#running-req: ")[2]) + 1
    with log.open("wb") as file:
        # The start that is read ends after `#running-req: 4`.
        file.write(line(7) + b"-" * (4 * 2**20 - len(line(7)) - cut - 1) + b"\n" + whole)
        file.write(access * 1_500_000)
    assert main(["serving", str(log)]) == 0
    assert "7 running" in capsys.readouterr().out
