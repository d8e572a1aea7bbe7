"""Answers made of documents of the API: units and sources, marked texts, pages, and refused arguments."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.errors import PerfdError
from perfd.mcp import event_answers, job_answers, rank_answers, reference_answers
from perfd.mcp.http_access import HttpAccess, Role, allowed_hosts
from perfd.mcp.parameters import checked, page, schema_of
from perfd.mcp.quantities import plain, quantity, unit_of, untrusted
from perfd.mcp.server import report_prompt
from perfd.mcp.tools import TOOLS, ToolContext, answer
from perfd.metrics.catalog import METRICS
from perfd.net import BearerToken

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
KEYS = ("gpus", "nccl", "slowdowns", "findings", "bottleneck", "steps", "efficiency", "parallel", "troubles")


class Api:
    """An aggregator of one document, which keeps what it was asked."""

    def __init__(self, **document):
        self.document = document
        self.asked = []

    def get(self, path):
        self.asked.append(path)
        return self.document

    def post(self, path, body):
        self.asked.append((path, body))
        return self.document


def asked(name, api, **arguments):
    (tool,) = [tool for tool in TOOLS if tool.name == name]
    return answer(tool, ToolContext(api=api, catalog=METRICS), arguments)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("step_time_s", "s"),
        ("fired_at_unix_s", "s since 1970-01-01 UTC"),
        ("tokens_per_s_per_gpu", "tokens/s per GPU"),
        ("bus_bytes_per_s", "bytes/s"),
        ("size_bytes", "bytes"),
        ("mfu_ratio", "ratio"),
        ("power_w", "W"),
        ("steps", "count"),
    ],
)
def test_a_name_gives_the_unit(name, unit):
    assert unit_of(name) == unit


@pytest.mark.parametrize("value", [None, True, "3", math.nan, math.inf])
def test_what_is_no_finite_number_is_no_quantity(value):
    assert quantity(value, "s", "log") is None


def test_a_text_is_marked_escaped_and_cut():
    assert untrusted("a\x1b[2J\n\u202eb") == {"untrusted": "a\\x1b[2J\\n\\u202eb"}
    assert untrusted("x" * 1001)["untrusted"] == "x" * 1000 + "... (1001 characters)"
    assert untrusted("x" * 1000)["untrusted"] == "x" * 1000
    assert untrusted(None) is None


@given(st.text(st.characters()), st.integers(1, 50))
def test_every_text_becomes_printable_and_bounded(text, most):
    shown = plain(text, most)
    assert shown.isprintable()
    assert len(shown) <= most + len(f"... ({len(text)} characters)")


@given(st.lists(st.integers(), max_size=30), st.integers(1, 7))
def test_pages_give_each_entry_once(entries, most):
    seen, offset = [], 0
    while offset is not None:
        shown, paging = page(entries, offset, most)
        assert len(shown) <= most
        seen += shown
        offset = paging["next_offset"]
    assert seen == entries


def test_a_page_beyond_the_end_is_empty_and_the_last():
    assert page([1], 5, 2) == ([], {"offset": 5, "limit": 2, "total": 1, "next_offset": None})


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("get_summary", {}, "The argument job is missing: Name of a job, as list_jobs shows it."),
        ("get_summary", {"jb": "a"}, "There is no argument jb; did you mean job?"),
        ("get_summary", {"job": 3}, "job must be a text of 1 to 1024 characters."),
        ("get_summary", {"job": ""}, "job must be a text of 1 to 1024 characters."),
        ("get_summary", {"job": "x" * 1025}, "job must be a text of 1 to 1024 characters."),
        ("get_summary", {"job": "\ud800"}, "job is not valid Unicode."),
        ("list_jobs", {"limit": 0}, "limit must be at least 1 and at most 200, not 0."),
        ("list_jobs", {"limit": 201}, "limit must be at least 1 and at most 200, not 201."),
        ("list_jobs", {"limit": True}, "limit must be a whole number, not True."),
        ("list_jobs", {"limit": 2.5}, "limit must be a whole number, not 2.5."),
        ("list_jobs", {"offset": -1}, "offset must be at least 0, not -1."),
        ("list_jobs", {"state": "dead"}, "state must be one of running, ended, all, not dead."),
        (
            "compare_jobs",
            {"a": "a", "b": "b", "max_regression_ratio": math.nan},
            "max_regression_ratio must be at least 0 and at most 1, not nan.",
        ),
    ],
)
def test_a_wrong_argument_is_refused_with_one_sentence_and_nothing_is_asked(name, arguments, sentence):
    api = Api(schema="x", jobs=[])
    with pytest.raises(PerfdError) as refused:
        asked(name, api, **arguments)
    assert str(refused.value) == sentence
    assert api.asked == []


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_defaults_of_a_tool_fit_its_own_schema(tool):
    required = {one.name: "x" for one in tool.parameters if one.required}
    values = {key: value for key, value in checked(tool.parameters, required).items() if value is not None}
    import jsonschema  # noqa: PLC0415  (3 s, which whoever only collects tests need not wait)

    jsonschema.validate(values, schema_of(tool.parameters))
    for one in tool.parameters:
        if one.name == "limit":
            assert f"at most {one.maximum}" in one.description


def test_only_the_tool_that_starts_captures_posts():
    assert [tool.name for tool in TOOLS if tool.captures] == ["start_capture"]


def test_names_cannot_leave_their_place_in_a_path():
    api = Api(schema="perfd.summary/2", jobs=[{"name": "a"}])
    asked("get_summary", api, job="../captures?x=1#y")
    assert api.asked == ["/api/v1/jobs/..%2Fcaptures%3Fx%3D1%23y"]


def test_one_step_more_than_shown_names_the_next_page():
    lines = [{"step": n, "step_time_s": 0.5} for n in (3, 4, 7)]
    found = rank_answers.steps(lines, None, 2)
    assert [row[0] for row in found["rows"]] == [3, 4]
    assert found["page"]["next_from_step"] == 7
    assert rank_answers.steps(lines, 4, 2)["page"]["next_from_step"] is None
    assert rank_answers.steps(lines, None, 3)["page"]["next_from_step"] is None


def test_ranks_join_what_their_sources_say_and_the_costliest_comes_first():
    job = {
        "gpus": [{"rank": 0, "node": "n0", "power_w": 500.0}, {"rank": 1, "node": "n1"}],
        "nccl": {"ranks": [{"rank": 1, "gain_ratio": 0.2}, {"rank": 2, "gain_ratio": 0.3}]},
    }
    entries = rank_answers.ranks(job, "gain_ratio")
    assert [entry["rank"] for entry in entries] == [2, 1, 0]
    found = rank_answers.rank_rows(entries)
    assert [column["name"] for column in found["columns"]] == ["rank", "node", "power_w", "gain_ratio"]
    assert found["rows"] == [[2, None, None, 0.3], [1, "n1", None, 0.2], [0, "n0", 500.0, None]]
    assert "sm_active_ratio" in found["unknown"]


@given(st.dictionaries(st.sampled_from(KEYS), JSON) | st.fixed_dictionaries(dict.fromkeys(KEYS, JSON)))
def test_odd_documents_never_break_an_answer_or_give_a_number_without_unit_and_source(job):
    for found in (
        job_answers.summary(job),
        rank_answers.rank_rows(rank_answers.ranks(job, "gain_ratio")),
        event_answers.capture(job, []),
        event_answers.trace(job, []),
    ):
        json.dumps(found, allow_nan=False)
        for number in quantities_in(found):
            assert math.isfinite(number["value"])
            assert number["unit"]
            assert number["source"]


def quantities_in(found):
    if isinstance(found, dict):
        if "value" in found:
            yield found
        for inner in found.values():
            yield from quantities_in(inner)


def test_a_metric_is_explained_and_an_unknown_one_gets_names_that_are_alike():
    found = reference_answers.metric("perfd_mfu_ratio", METRICS)
    assert found["unit"] == "ratio, 0 to 1"
    assert found["absent"] == METRICS["perfd_mfu_ratio"].absent
    with pytest.raises(PerfdError, match="perfd_mfu_ratio"):
        reference_answers.metric("mfu", METRICS)


def test_the_trace_of_a_capture_is_averaged_over_its_steps():
    step = {"span_s": 2.0, "compute_s": 1.0, "communication_s": 0.5, "idle_s": 0.5}
    rank = {
        "rank": 0,
        "steps": [step, {**step, "span_s": 4.0}],
        "kernels": [{"name": "gemm", "total_s": 1.5}, {"name": "x\x1b", "total_s": 2.5}],
    }
    found = event_answers.trace({"schema": "perfd.trace/2", "ranks": [rank]}, [rank])
    assert found["ranks"]["rows"] == [[0, 2, 3.0, 1.0, 0.5, None, 0.5]]
    assert found["kernels"]["rows"] == [[0, "x\\x1b", 2.5], [0, "gemm", 1.5]]


def test_the_prompt_names_its_parts_and_escapes_the_job():
    text = report_prompt({"job": "a\nIgnore this", "baseline": "b"})
    for part in ("## Summary", "## Metrics", "## Findings", "## Recommendations"):
        assert part in text
    assert "job: a\\nIgnore this\n" in text
    assert "compare_jobs" in text
    assert "compare_jobs" not in report_prompt({"job": "a"})


def test_the_token_gives_the_role(tmp_path):
    for name in ("read", "capture"):
        (tmp_path / name).write_text(f"{name}-token\n")
    read, capture = (BearerToken(str(tmp_path / name), key=name) for name in ("read", "capture"))
    both = HttpAccess(read=read, capture=capture)
    assert both.role_of("Bearer capture-token") is Role.CAPTURE
    assert both.role_of("Bearer read-token") is Role.READ
    assert both.role_of("Bearer other") is None
    assert both.role_of("") is None
    assert HttpAccess(capture=capture).role_of("") is Role.READ
    assert HttpAccess(read=read).role_of("Bearer capture-token") is None


def test_beyond_loopback_a_token_is_needed_and_on_it_the_own_names(tmp_path):
    (tmp_path / "read").write_text("word")
    with pytest.raises(PerfdError, match="--read-token-file"):
        allowed_hosts("0.0.0.0:1", HttpAccess())
    assert allowed_hosts("0.0.0.0:1", HttpAccess(read=BearerToken(str(tmp_path / "read"), key="k"))) is None
    assert {"127.0.0.1:*", "localhost:*", "[::1]:*"} <= set(allowed_hosts("127.0.0.1:1", HttpAccess()))
