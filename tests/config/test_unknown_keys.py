"""A key that does not exist is named with where it stands and what it could have been."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.config import AgentConfig, AggregatorConfig, parse, unknown_keys
from perfd.errors import ConfigError


def refusal(text: str, kind: type = AgentConfig) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(text, kind, name="x.yaml")
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nodes: a", "1:1: `nodes` is not a key; did you mean `node`?"),
        (
            "uplink: {tls: {pem: x}}",
            "1:16: `pem` is not a key of `uplink.tls`; the keys are certificate, key, ca.",
        ),
        (
            "collectors: {nvml: {enabeld: true}}",
            "1:21: `enabeld` is not a key of `collectors.nvml`; did you mean `enabled`?",
        ),
        (
            "capture: {vllm: [{adress: a:1}]}",
            "1:19: `adress` is not a key of `capture.vllm.0`; did you mean `address`?",
        ),
    ],
)
def test_a_key_that_does_not_exist_is_named_with_its_place(text: str, sentence: str) -> None:
    assert refusal(text) == f"x.yaml:{sentence}"


def test_all_keys_that_do_not_exist_are_named_at_once() -> None:
    assert len(refusal("{a: 1, uplink: {b: 2}, capture: {kineto: {c: 3}}}").splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("history: {retention_days: soon}", "1:27: `history.retention_days` must be a number, not text."),
        ("listen: null", "1:9: `listen` must be text, not null."),
        ("rules: {files: a}", "1:16: `rules.files` must be a list, not text."),
        (
            "webhook: {token_file: 3}",
            "1:23: `webhook.token_file` must be text or null, not an integer.",
        ),
        ("analysis: [a]", "1:11: `analysis` must be a mapping of keys to values, not a list."),
        (
            "capture_tool: gdb",
            "1:15: `capture_tool` cannot be 'gdb'; see docs/configuration.md.",
        ),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_its_place_in_words_of_yaml(text: str, sentence: str) -> None:
    assert refusal(text, AggregatorConfig) == f"x.yaml:{sentence}"


def test_of_several_values_below_free_keys_the_wrong_one_is_named() -> None:
    text = "collectors:\n  host: {interval_s: 5}\n  nvml:\n    interval_s: soon\n  nccl: {interval_s: x}\n"
    sentence = "`collectors.nvml.interval_s` must be a number or null, not text."
    assert refusal(text) == f"x.yaml:4:17: {sentence}"


def test_a_key_that_an_anchor_brings_is_named_where_it_is_written() -> None:
    text = "x: &tls\n  pem: a\nuplink: {tls: {<<: *tls}}"
    assert "x.yaml:2:3: `pem` is not a key of `uplink.tls`" in refusal(text)


KEYS = st.sampled_from(["uplink", "tls", "ca", "capture", "sglang", "address", "collectors", "nvml", "x"])
DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
)


@given(st.dictionaries(KEYS, DOCUMENTS, max_size=5))
def test_sentences_are_about_what_is_refused_and_only_that(document: dict[str, object]) -> None:
    try:
        msgspec.convert(document, AgentConfig)
        refused = ""
    except msgspec.ValidationError as error:
        refused = str(error)
    said = list(unknown_keys(document, AgentConfig))
    assert said or "unknown field" not in refused
    assert refused or not said
