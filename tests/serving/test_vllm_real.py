"""`perfd serving` beside a real vLLM on a CPU, with random weights: it shows what its clients saw."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from perfd_collectors.serving.exposition_reader import PageReader
from perfd_collectors.serving.server_scrape import FAMILIES, read_page

from perfd.analysis.serving.engine_snapshot import Counter
from perfd.cli import main
from tests.support.services import Service

VLLM_PYTHON = os.environ.get("PERFD_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not VLLM_PYTHON, reason="PERFD_VLLM_PYTHON does not name an interpreter with vLLM"),
]
REQUESTS, TOKENS, AT_ONCE = 12, 16, 4
LONG_TOKENS = 440
_MODEL = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast
folder, words = sys.argv[1], sys.argv[2]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
tokenizer.train_from_iterator([words], trainer)
PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
config = LlamaConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=640, max_position_embeddings=512,
)
config.architectures = ["LlamaForCausalLM"]
config.save_pretrained(folder)
"""
_WORDS = "which rank waits for whom while memory bandwidth limits the decode steps of a server"
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Answer:
    """What a client saw of one request."""

    first_token_s: float
    whole_s: float
    prompt_tokens: int
    tokens: int


def server(folder: Path, model: Path, *options: str) -> Service:
    """A vLLM that serves the model; it is ready after about a minute on two idle cores."""
    return Service(
        lambda port: [
            *("env", *(f"{name}={value}" for name, value in _ENVIRONMENT.items())),
            *(str(Path(VLLM_PYTHON).with_name("vllm")), "serve", str(model), "--load-format", "dummy"),
            *("--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--served-model-name", "tiny"),
            *("--max-model-len", "512", "--max-num-seqs", str(AT_ONCE), "--no-enable-prefix-caching"),
            *options,
        ],
        ready="/v1/models",
        folder=folder,
        start_within_s=900,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([VLLM_PYTHON, "-c", _MODEL, str(folder), _WORDS], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def vllm(model, tmp_path_factory):
    with server(tmp_path_factory.mktemp("vllm"), model) as running:
        yield running


def completion(url: str, number: int, tokens: int = TOKENS) -> Answer:
    """A streamed answer of so many tokens."""
    body = {
        "model": "tiny", "prompt": f"{number} {_WORDS}", "max_tokens": tokens, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    begin, first_s, usage = time.perf_counter(), None, {}
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            said = json.loads(line[6:])
            if said["choices"] and first_s is None:
                first_s = time.perf_counter() - begin
            usage = said.get("usage") or usage
    assert first_s is not None
    return Answer(first_s, time.perf_counter() - begin, usage["prompt_tokens"], usage["completion_tokens"])


def shown(capsys, model: Path, *arguments: str) -> dict[str, Any]:
    theory = ("--gpu", "H100", "--tp", "1", "--model-config", str(model / "config.json"))
    assert main(["serving", *arguments, *theory, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["servers"]
    return found


def counters(vllm: Service) -> dict[str, float]:
    return dict(read_page(PageReader(FAMILIES), vllm.text("/metrics").encode(), "page").counters)


def test_a_server_without_statistics_is_named_as_one(model, tmp_path, capsys):
    # Before the server of the other tests has started: a machine for tests has room for one.
    with server(tmp_path, model, "--disable-log-stats") as silent:
        completion(silent.url, 1)
        assert main(["serving", silent.url]) == 2
        assert "--disable-log-stats" in capsys.readouterr().err


def test_requests_tokens_and_latencies_are_those_of_the_clients(vllm, model, capsys):
    before = counters(vllm)
    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = list(pool.map(lambda number: completion(vllm.url, number), range(REQUESTS)))
    assert {one.tokens for one in answers} == {TOKENS}
    after = counters(vllm)
    added = {name: after[name] - before.get(name, 0.0) for name in after}
    assert added[Counter.REQUESTS] == REQUESTS
    assert added[Counter.GENERATION_TOKENS] == REQUESTS * TOKENS
    assert added[Counter.PROMPT_TOKENS] == sum(one.prompt_tokens for one in answers)

    found = shown(capsys, model, vllm.url)
    assert (found["engine"], found["model"]) == ("vllm", "tiny")
    assert (found["running_requests"], found["queued_requests"]) == (0.0, 0.0)
    # A client waits for what the server counts, and for its own connection beside it.
    first_s, whole_s = (mean(getattr(one, name) for one in answers) for name in ("first_token_s", "whole_s"))
    assert 0 < found["ttft_s"]["mean"] <= first_s
    assert found["ttft_s"]["mean"] < found["e2e_s"]["mean"] <= whole_s
    # Between the tokens of a request passes what is left of it after the first.
    between_s = mean((one.whole_s - one.first_token_s) / (TOKENS - 1) for one in answers)
    assert 0 < found["tpot_s"]["mean"] <= 1.5 * between_s
    for latency in ("ttft_s", "tpot_s", "e2e_s"):
        values = found[latency]
        assert 0 < values["p50"] <= values["p90"] <= values["p99"]


def test_what_waits_is_what_the_server_has_no_room_for(vllm, model, capsys):
    with ThreadPoolExecutor(max_workers=AT_ONCE + 2) as pool:
        answers = [pool.submit(completion, vllm.url, number, LONG_TOKENS) for number in range(AT_ONCE + 2)]
        seen = _seen_while(answers, lambda: shown(capsys, model, vllm.url))
    assert max(one["running_requests"] for one in seen) == AT_ONCE
    assert {one["queued_requests"] for one in seen if one["running_requests"] == AT_ONCE} >= {2.0}
    assert all(one["running_requests"] + one["queued_requests"] <= AT_ONCE + 2 for one in seen)


def test_prefill_is_not_blamed_while_no_prompt_is_computed(vllm, model, capsys):
    decoding: list[dict[str, Any]] = []
    while not decoding:
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            answers = [pool.submit(completion, vllm.url, number, LONG_TOKENS) for number in range(AT_ONCE)]
            seen = _seen_while(answers, lambda: shown(capsys, model, vllm.url, "--interval", "0.2"))
        # Intervals between the last prompt and the first end.
        decoding = [one for one in seen if one["generation_tokens_per_s"] and one["prompt_tokens_per_s"] == 0]
    assert not any(_blames_prompts(one) for one in decoding)
    idle = shown(capsys, model, vllm.url, "--interval", "1")
    assert (idle["generation_tokens_per_s"], idle["prompt_tokens_per_s"]) == (0.0, 0.0)
    assert (idle["running_requests"], idle["ttft_s"]["p50"], idle["tpot_s"]["p50"]) == (0.0, None, None)
    assert not _blames_prompts(idle)


def _blames_prompts(found: dict[str, Any]) -> bool:
    return any("prefill" in one["kind"] or one["kind"] == "long_prompts" for one in found["findings"])


def _seen_while(answers: list[Future[Answer]], look) -> list[dict[str, Any]]:
    """What is shown until the first answer is complete, and no later."""
    seen = []
    while not any(one.done() for one in answers):
        seen.append(look())
    for one in answers:
        one.result()
    return seen[:-1] or seen
