from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.serving.exposition_reader import PageReader, PageState
from serving.pages import busy_70b

from perfd.cli import main

FIXTURES = Path(__file__).parents[1] / "fixtures" / "serving"


def read(text: str | bytes):
    return PageReader().read(text if isinstance(text, bytes) else text.encode())


def values(text: str | bytes, name: str) -> list[float]:
    return [series.value for series in read(text).series.get(name, ())]


def test_labels_may_hold_anything_that_is_escaped() -> None:
    page = read('m{a="x\\"y\\\\z\\n}, ",b=""} 1\n')
    assert page.series["m"][0].labels == {"a": 'x"y\\z\n}, ', "b": ""}


def test_timestamps_exemplars_and_windows_line_ends_do_not_change_the_value() -> None:
    text = 'a{x="1"} 5 1700000000\nb{x="1"} 6 # {id="q"} 0.5\nc 7\r\n'
    assert [values(text, name) for name in "abc"] == [[5.0], [6.0], [7.0]]


def test_nan_and_infinity_are_values() -> None:
    assert math.isnan(values("m NaN\n", "m")[0])
    assert values("m +Inf\n", "m") == [math.inf]


def test_a_series_that_is_there_twice_counts_once_and_is_reported() -> None:
    page = read('m{a="1"} 1\nm{a="1"} 2\n')
    assert [series.value for series in page.series["m"]] == [1.0]
    assert page.duplicates == 1


def test_the_second_page_is_read_as_the_first() -> None:
    reader = PageReader()
    first, second = reader.read(busy_70b()), reader.read(busy_70b())
    assert first == second


def test_only_the_type_makes_a_histogram() -> None:
    page = read('# TYPE m gauge\nm{gt="0",le="1"} 2\n# TYPE h histogram\nh_bucket{le="+Inf"} 1\n')
    assert not page.is_histogram("m")
    assert page.is_histogram("h")


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (b"", PageState.EMPTY),
        (b" \n\n", PageState.EMPTY),
        (b"<!DOCTYPE html><html>x 1</html>\n", PageState.NOT_METRICS),
        (b'{"error": "no"}\n', PageState.NOT_METRICS),
        (b"Not Found\n", PageState.NOT_METRICS),
        (b"m 1\n" * (13 * 1024 * 1024 + 1), PageState.TOO_LARGE),
    ],
    ids=["nothing", "blank", "html", "json", "words", "too large"],
)
def test_what_is_no_page_has_a_clear_state_and_no_value(body: bytes, state: PageState) -> None:
    page = PageReader().read(body)
    assert page.state is state
    assert page.series == {}


def test_invalid_utf8_spoils_only_the_text_that_holds_it() -> None:
    assert values(b'm{a="\xff\xfe"} 3\nn 4\n', "n") == [4.0]
    assert values(b'm{a="\xff\xfe"} 3\nn 4\n', "m") == [3.0]


@given(st.integers(min_value=0, max_value=len(busy_70b())))
def test_a_cut_page_never_invents_a_value(cut: int) -> None:
    whole = PageReader().read(busy_70b())
    page = PageReader().read(busy_70b()[:cut])
    for name, series in page.series.items():
        assert set(map(repr, series)) <= set(map(repr, whole.series[name]))


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(body: bytes) -> None:
    PageReader().read(body)


@given(st.text(alphabet='m{}"=,\\ \n#1.eNa:_T', max_size=80))
def test_anything_that_looks_like_a_page_is_read_without_an_error(text: str) -> None:
    PageReader().read(text.encode())


@pytest.mark.parametrize("page", sorted(FIXTURES.glob("vllm-*.prom.gz")), ids=lambda path: path.name)
def test_names_that_ray_serve_changed_are_those_of_vllm(page, tmp_path, capsys) -> None:
    text = gzip.decompress(page.read_bytes()).decode()
    found = []
    for name, body in (("plain", text), ("ray", re.sub(r"(?m)^(# \w+ )?vllm:", r"\1ray_vllm_", text))):
        assert ("\nvllm:" in body) == (name == "plain")
        path = tmp_path / f"{name}.prom"
        path.write_text(body)
        assert main(["serving", str(path), "--json"]) == 0
        (server,) = json.loads(capsys.readouterr().out)["servers"]
        found.append({key: value for key, value in server.items() if key != "source"})
    assert found[0] == found[1]
    assert found[0]["running_requests"] is not None
