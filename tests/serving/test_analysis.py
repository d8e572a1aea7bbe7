"""The worked example of docs/serving.md, and what one and two looks amount to."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from perfd_collectors.serving.exposition_reader import PageReader
from perfd_collectors.serving.server_scrape import FAMILIES, read_page
from serving.pages import LLAMA_70B

from perfd.analysis.findings import Kind
from perfd.analysis.flops.gpu_peak_lookup import find_gpu
from perfd.analysis.serving.engine_snapshot import Counter, Engine, ReplicaLoad, Snapshot
from perfd.analysis.serving.histograms import Distribution, Histogram, increase, merged, quantile
from perfd.analysis.serving.served_model import served_model
from perfd.analysis.serving.server_config import from_arguments
from perfd.analysis.serving.server_rates import ServerRates, measure
from perfd.analysis.serving.serving_diagnosis import diagnose
from perfd.analysis.serving.serving_theory import (
    ServingLayout,
    Theory,
    active_parameters,
    matrix_parameters,
    theory_of,
)
from perfd.analysis.serving.theory_comparison import compare
from perfd.analysis.serving.tuning_advice import SERVING_KINDS, advice_for
from perfd.cli import main
from perfd.gpu_peaks import load_peaks

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def theory(**config: object) -> Theory:
    model = served_model({**LLAMA_70B, **config})
    gpu = find_gpu(load_peaks(), "NVIDIA H100 80GB HBM3")
    assert model is not None
    assert gpu is not None
    found = theory_of(model, ServingLayout(tp=8), gpu)
    assert found is not None
    return found


def histogram(counts: tuple[float, ...]) -> Histogram:
    return Histogram(bounds=(0.1, 0.2, 0.4, math.inf), counts=counts, sum=1.0)


def test_a_70b_model_on_eight_h100_decodes_in_5_2_ms_at_best() -> None:
    assert theory().tpot_floor_s == pytest.approx(5.2e-3, rel=0.01)
    assert theory().critical_batch == pytest.approx(989.4e12 / 3.35e12, rel=0.01)


def test_fp8_weights_halve_the_floor_but_for_the_head() -> None:
    floor = theory(quantization_config={"quant_method": "fp8"}).tpot_floor_s
    assert 0.5 < floor / theory().tpot_floor_s < 0.52


def test_the_batch_of_the_example_explains_12_ms_and_prefill_the_tail() -> None:
    """The page and the model of docs/serving.md, whose numbers these are."""
    page = (EXAMPLES / "serving-70b.prom").read_bytes()
    measured = measure(read_page(PageReader(FAMILIES), page, "page"))
    comparison = compare(measured, theory(**json.loads((EXAMPLES / "llama-70b.config.json").read_text())))
    assert (measured.tpot.p50, measured.tpot.p99) == (pytest.approx(12e-3), pytest.approx(45e-3))
    assert measured.now.running_requests == 200
    step = comparison.step
    assert step is not None
    assert comparison.tpot_floor_s == pytest.approx(5.2e-3, rel=0.005)
    assert (step.weights_s, step.kv_s) == (pytest.approx(5.19e-3, rel=1e-3), pytest.approx(4.89e-3, rel=1e-3))
    assert step.all_reduce_s == pytest.approx(2.04e-3, rel=2e-3)
    assert step.total_s == pytest.approx(12.12e-3, rel=1e-3)
    assert comparison.tpot_over_step_ratio == pytest.approx(0.99, abs=0.005)
    assert comparison.mbu_ratio == pytest.approx(0.84, abs=0.005)
    found = diagnose(measured, comparison)
    assert [finding.kind for finding in found] == [
        Kind.LARGE_BATCH,
        Kind.PREFILL_INTERFERENCE,
    ]
    assert "--max-running-requests" in found[0].advice
    assert "--chunked-prefill-size" in found[1].advice


def test_the_command_of_the_example_prints_what_the_documentation_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES.parents[1])
    section = (EXAMPLES.parent / "serving.md").read_text().split("## A worked example")[1]
    command, shown = section[section.index("    perfd serving") : section.index("(Some lines")].split(
        "\n\n", 1
    )
    assert main(shlex.split(command.replace("\\\n", " "))[1:]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for line in filter(None, map(str.strip, shown.splitlines())):
        assert " ".join(line.split()) in printed


def test_quantiles_are_those_of_prometheus() -> None:
    # histogram_quantile(q, ...) of Prometheus for these buckets.
    found = histogram((0.0, 2.0, 4.0, 5.0))
    assert quantile(0.2, found) == pytest.approx(0.15)
    assert quantile(0.5, found) == pytest.approx(0.25)
    assert quantile(0.99, found) == 0.4
    assert quantile(0.5, histogram((0.0, 0.0, 0.0, 0.0))) is None


def test_histograms_with_other_bounds_add_up_where_they_have_the_same() -> None:
    other = Histogram(bounds=(0.2, 0.3, math.inf), counts=(1.0, 1.0, 2.0), sum=1.0)
    both = merged([histogram((1.0, 2.0, 3.0, 4.0)), other])
    assert both is not None
    assert (both.bounds, both.counts) == ((0.2, math.inf), (3.0, 6.0))


def test_a_histogram_that_went_back_has_no_increase() -> None:
    assert increase(histogram((1.0, 2.0, 3.0, 4.0)), histogram((0.0, 0.0, 1.0, 1.0))) is None


def look(tokens: float, **changes: object) -> Snapshot:
    counters = {Counter.GENERATION_TOKENS: tokens}
    made = Snapshot(engine=Engine.SGLANG, model="m", running_requests=4.0, counters=counters)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_rates_need_two_looks() -> None:
    assert measure(look(100)).generation_tokens_per_s is None
    assert measure(look(300), look(100), 10.0).generation_tokens_per_s == 20.0


def test_drafts_of_which_none_was_accepted_are_not_replaced_by_an_older_ratio() -> None:
    drafts = {Counter.SPEC_DRAFT_TOKENS: 90.0, Counter.SPEC_ACCEPTED_TOKENS: 0.0}
    now = Snapshot(engine=Engine.VLLM, counters=drafts, spec_accept_ratio=0.7)
    assert measure(now).spec_accept_ratio == 0.0


@pytest.mark.parametrize("before", [look(500), look(100, model="other")])
def test_a_restart_or_another_model_between_the_looks_leaves_rates_unknown(before: Snapshot) -> None:
    measured = measure(look(300), before, 10.0)
    assert measured.generation_tokens_per_s is None
    assert measured.span_s is None
    assert measured.notes


def kinds_of(**changes: object) -> set[Kind]:
    return {finding.kind for finding in diagnose(measure(look(1, **changes)))}


def test_each_state_of_a_server_that_needs_no_theory_has_its_finding() -> None:
    loads = (ReplicaLoad(replica="0", running_requests=9.0), ReplicaLoad(replica="1", running_requests=1.0))
    assert kinds_of() == set()
    assert kinds_of(kv_cache_used_ratio=0.97, queued_requests=9.0) == {
        Kind.KV_MEMORY,
        Kind.QUEUEING,
    }
    assert kinds_of(cuda_graph_ratio=0.0) == {Kind.CUDA_GRAPH}
    assert kinds_of(forward_occupancy_ratio=0.4) == {Kind.CPU_OVERHEAD}
    assert kinds_of(spec_accept_length=1.1) == {Kind.SPECULATION}
    assert kinds_of(replicas=loads) == {Kind.REPLICA_IMBALANCE}
    assert kinds_of(queued_requests=8.0) == {Kind.QUEUEING}


def test_requests_that_wait_beside_an_empty_cache_wait_for_the_limit() -> None:
    state = {"kv_cache_used_ratio": 0.3, "queued_requests": 2.0, "running_requests": 32.0}
    (found,) = diagnose(measure(look(1, **state, max_running_requests=32.0)))
    assert (found.kind, found.confidence) == (Kind.UNUSED_KV_MEMORY, 0.8)
    assert found.evidence[1] == "32 requests run; the limit of 32 is reached."
    (found,) = diagnose(measure(look(1, **state, max_running_requests=256.0)))
    assert (found.confidence, "not reached" in found.evidence[1]) == (0.4, True)
    assert kinds_of(**state | {"kv_cache_used_ratio": 0.71}) == set()
    assert kinds_of(**state | {"queued_requests": 0.0}) == set()


def test_the_limit_of_requests_is_the_servers_or_of_each_engine() -> None:
    assert from_arguments({"tp_size": 1, "dp_size": 2, "max_running_requests": 64}).max_running_requests == 64
    assert from_arguments({"data_parallel_size": 2, "max_num_seqs": 256}).max_running_requests == 512
    assert from_arguments({"tp_size": 1}).max_running_requests is None


def test_few_requests_are_reported_against_the_critical_batch() -> None:
    snapshot = look(1, running_requests=2.0, kv_used_tokens=1000.0)
    measured = measure(snapshot)
    found = diagnose(measured, compare(measured, theory()))
    assert [finding.kind for finding in found] == [Kind.FEW_REQUESTS]


def latencies(**found: tuple[float, float]) -> dict[str, Distribution]:
    return {name: Distribution(p50=p50, p99=p99, mean=p50) for name, (p50, p99) in found.items()}


def found_kinds(measured: ServerRates, limits: Theory | None) -> set[Kind]:
    return {finding.kind for finding in diagnose(measured, limits and compare(measured, limits))}


def test_prompts_that_take_most_of_the_time_to_the_first_token_are_long() -> None:
    measured = ServerRates(
        now=look(1, running_requests=64.0, kv_used_tokens=64_000.0),
        latencies=latencies(ttft=(0.8, 1.0)),
        mean_prompt_tokens=30_000.0,
    )
    assert found_kinds(measured, theory()) == {Kind.LONG_PROMPTS}
    # Half as much for a queue: then it is not the prompts.
    assert found_kinds(replace(measured, latencies=latencies(ttft=(9.0, 12.0))), theory()) == {
        Kind.SLOW_PREFILL
    }


def test_prefill_is_not_blamed_for_uneven_decode_while_no_prompt_is_computed() -> None:
    uneven = {"latencies": latencies(itl=(0.02, 0.09)), "span_s": 5.0, "computed_prompt_tokens_per_s": 0.0}
    sglang = ServerRates(now=look(1, engine=Engine.SGLANG), **uneven)
    live = look(1, engine=Engine.SGLANG, counters={Counter.LIVE_PROMPT_TOKENS: 7.0})
    assert found_kinds(ServerRates(now=look(1, engine=Engine.VLLM), **uneven), None) == set()
    assert found_kinds(replace(sglang, now=live), None) == set()
    # It counts prompts when their requests end.
    assert found_kinds(sglang, None) == {Kind.PREFILL_INTERFERENCE}
    assert found_kinds(replace(sglang, now=live, computed_prompt_tokens_per_s=9.0), None) == {
        Kind.PREFILL_INTERFERENCE
    }


def test_prefill_without_cache_hits_is_reported_where_it_outweighs_decode() -> None:
    measured = ServerRates(
        now=look(1), prefix_hit_ratio=0.02, computed_prompt_tokens_per_s=9000.0, generation_tokens_per_s=800.0
    )
    assert found_kinds(measured, None) == {Kind.LOW_CACHE_HITS}
    assert found_kinds(replace(measured, generation_tokens_per_s=20_000.0), None) == set()
    assert found_kinds(replace(measured, prefix_hit_ratio=0.29), None) == {Kind.LOW_CACHE_HITS}
    assert found_kinds(replace(measured, prefix_hit_ratio=0.31), None) == set()


def test_decode_that_its_batch_does_not_explain_is_slow_unless_something_else_explains_it() -> None:
    measured = ServerRates(
        now=look(1, running_requests=64.0, kv_used_tokens=64_000.0), latencies=latencies(itl=(0.02, 0.03))
    )
    assert found_kinds(measured, theory()) == {Kind.SLOW_DECODE}
    assert found_kinds(replace(measured, cuda_graph_ratio=0.0, span_s=1.0), theory()) == {Kind.CUDA_GRAPH}
    assert found_kinds(replace(measured, gpu_busy_ratio=0.5), theory()) == {Kind.CPU_OVERHEAD}
    assert found_kinds(replace(measured, latencies=latencies(itl=(0.008, 0.012))), theory()) == set()


def test_slow_decode_says_what_more_gpus_and_narrower_weights_would_allow() -> None:
    measured = ServerRates(
        now=look(1, running_requests=64.0, kv_used_tokens=64_000.0), latencies=latencies(itl=(0.02, 0.03))
    )
    limits = theory()
    (found,) = diagnose(measured, compare(measured, limits))
    assert "with tensor parallelism 16" in found.evidence[1]
    assert "with weights in fp8 or int8" in found.evidence[1]
    narrow = replace(limits, model=replace(limits.model, weight_bits=8))
    (found,) = diagnose(measured, compare(measured, narrow))
    assert "fp8" not in found.evidence[1]


def test_a_first_token_that_takes_far_longer_than_its_prompt_is_slow_prefill() -> None:
    """The prompt of 1,024 tokens takes 17.9 ms to compute at least; the limit is five times that."""
    measured = ServerRates(
        now=look(1, running_requests=64.0, kv_used_tokens=64_000.0),
        latencies=latencies(ttft=(1.444, 2.0), itl=(0.008, 0.009)),
        mean_prompt_tokens=1024.0,
    )
    (found,) = diagnose(measured, compare(measured, theory()))
    assert found.kind is Kind.SLOW_PREFILL
    assert "1444.0 ms" in found.evidence[0]
    assert "17.9 ms" in found.evidence[0]
    assert "--chunked-prefill-size" in found.advice
    for ttft_s, hit, queue_s, slow in (
        (0.0891, None, None, False), (0.0901, None, None, True),
        (0.0891, 0.5, None, True), (1.444, None, 1.4, False),
    ):  # fmt: skip
        times = latencies(ttft=(ttft_s, 2.0), **({} if queue_s is None else {"queue": (queue_s, 1.5)}))
        one = replace(measured, latencies=times, prefix_hit_ratio=hit)
        assert (Kind.SLOW_PREFILL in found_kinds(one, theory())) is slow
    # Without a measured prompt nothing is known of it.
    assert found_kinds(replace(measured, mean_prompt_tokens=None), theory()) == set()


def test_speculation_counts_the_tokens_of_a_step() -> None:
    """20 ms a step is slow; 20 ms a step that gives three tokens is 6.7 ms a token, as TPOT says."""
    now = look(1, running_requests=64.0, kv_used_tokens=64_000.0)
    plain = ServerRates(now=now, latencies=latencies(itl=(0.0067, 0.008)))
    spec = replace(plain, spec_accept_length=3.0)
    assert compare(spec, theory()).tpot_over_step_ratio == pytest.approx(
        3 * (compare(plain, theory()).tpot_over_step_ratio or 0.0)
    )


def test_options_are_called_as_the_engine_calls_them() -> None:
    full = {"kv_cache_used_ratio": 0.97, "queued_requests": 9.0}
    (sglang, *_), (vllm, *_) = (
        diagnose(measure(look(1, engine=engine, **full))) for engine in (Engine.SGLANG, Engine.VLLM)
    )
    assert "--mem-fraction-static" in sglang.advice
    assert "--gpu-memory-utilization" in vllm.advice


@pytest.mark.parametrize("engine", Engine)
@pytest.mark.parametrize("kind", SERVING_KINDS)
def test_every_finding_has_advice_for_every_engine(kind: Kind, engine: Engine) -> None:
    assert advice_for(kind, engine).endswith(".")


def test_latent_attention_and_experts_are_counted() -> None:
    deepseek_v3 = {
        "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128,
        "num_key_value_heads": 128, "vocab_size": 129280, "hidden_act": "silu", "kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "moe_layer_freq": 1,
        "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    model = served_model(deepseek_v3)
    assert model is not None
    # DeepSeek-V3 technical report (arXiv:2412.19437): 37 billion of 671 are active, with embeddings.

    assert active_parameters(model.shape) == pytest.approx(36.5e9, rel=0.03)
    assert sum(matrix_parameters(model.shape, None)) == pytest.approx(669e9, rel=0.02)
    assert model.kv_bytes_per_token == 61 * 576 * 2


@pytest.mark.parametrize("config", [{}, {"num_hidden_layers": "80"}, {"hidden_size": -1}])
def test_a_configuration_without_sizes_is_no_model(config: dict[str, object]) -> None:
    assert served_model(config) is None
