"""`perfd top` in terminals of every size: what it shows, its keys, and when the aggregator goes away."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from perfd.aggregator.web_api.charts.rank_columns import rank_columns
from perfd.aggregator.web_api.fleet_pages import fleet_page
from perfd.cli.top.fleet_table import orders
from perfd.cli.top.keyboard import first_key
from perfd.cli.top.screen_state import Screen, ScreenPosition, press, window
from perfd.cli.top.screens import fleet_click, fleet_screen, help_screen, server_order, server_screen
from perfd.cli.top.single_job import job_screen
from perfd.cli.top.sparkline import sparkline
from perfd.net.http import Response
from tests.support.page_server import StandIn, fleet_row, job_entry, server_entry

SIZES = [(80, 22), (40, 12), (200, 60), (60, 8)]


def drawn(screen: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(screen)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


def fleet(*jobs: dict[str, Any], servers: int = 0) -> dict[str, Any]:
    agents = {"count": 1000, "connected": 996}
    alerts = [{"name": "PerfdXid", "summary": f"GPU {gpu} reports XID 79"} for gpu in range(5)]
    return {
        "jobs": list(jobs),
        "alerts": alerts,
        "agents": agents,
        "servers": {"count": servers, "up": servers},
    }


def answered(*jobs: dict[str, Any], servers: int = 0, **query: str) -> dict[str, Any]:
    """What an aggregator answers about these jobs."""
    return fleet_page(fleet(*jobs, servers=servers), query)


def at(row: int) -> ScreenPosition:
    return ScreenPosition(row=row)


def one_job(
    job: dict[str, Any], width: int = 80, room: int | None = 22, series: dict[str, Any] | None = None
) -> list[str]:
    return drawn(job_screen(job, [], width, room, ranks=rank_columns(job, {}), series=series), width)


def straggler(rank: int, lost_ratio: float) -> dict[str, Any]:
    culprits = [{"kind": "rank", "id": rank}]
    return {"kind": "straggler", "gain_ratio": lost_ratio, "culprits": culprits, "culprit_count": 1}


# Screens


@pytest.mark.parametrize(("width", "room"), SIZES)
@pytest.mark.parametrize("row", [0, 250, 499])
def test_500_jobs_fit_any_terminal_with_the_chosen_one_among_them(width: int, room: int, row: int) -> None:
    jobs = [
        fleet_row(f"a-rather-long-name-of-a-job-{number:03}", firing_alerts=3, bottleneck=straggler(7, 0.2))
        for number in range(500)
    ]
    lines = drawn(fleet_screen(answered(*jobs), at(row), width, room), width)

    assert len(lines) <= room
    assert max(map(len, lines)) <= width
    (chosen,) = [line for line in lines if line.strip().startswith(">")]
    assert chosen.strip().startswith("> a-r")
    # Names that differ at their end are told apart.
    assert f"{row:03}  " in chosen
    assert "of 500 jobs" in lines[-1]


@pytest.mark.parametrize(("width", "room"), SIZES)
def test_1000_ranks_fit_any_terminal_and_the_straggler_is_first(width: int, room: int) -> None:
    finding = {
        **straggler(517, 0.2), "evidence": ["word " * 30], "advice": "word " * 60,
    }  # fmt: skip
    job = job_entry("llama", ranks=1000, slow=517, bottleneck=finding)
    lines = one_job(job, width, room)

    assert len(lines) <= room
    assert max(map(len, lines)) <= width
    assert "rank 517" in lines[1]
    if room > 20:
        heading = next(number for number, line in enumerate(lines) if line.startswith("RANK"))
        assert lines[heading + 1].startswith("rank 517")
        assert " more" in lines[-1]


def test_ranks_of_which_nothing_is_measured_are_listed_too() -> None:
    # As of MIG slices without power and profiling counters.
    gpus = [{"node": "n1", "gpu": str(number), "rank": number} for number in range(40)]
    lines = one_job(job_entry("llama", gpus=gpus), 80, 24)
    assert " more" in lines[-1]


def test_jobs_that_run_and_lose_most_come_first_and_ended_ones_last() -> None:
    jobs = [
        fleet_row("ended", ended=True, bottleneck=straggler(1, 0.9)),
        fleet_row("fine"),
        fleet_row("silent", silent_s=60.0, bottleneck=straggler(1, 0.9)),
        fleet_row("bad", bottleneck=straggler(1, 0.1)),
        fleet_row("worse", bottleneck=straggler(1, 0.3)),
    ]

    lines = drawn(fleet_screen(answered(*jobs), at(0), 120, 20), 120)
    shown = "\n".join(lines)
    rows = [line.strip().removeprefix("> ").split()[0] for line in lines[-5:]]
    assert rows == ["worse", "bad", "fine", "silent", "ended"]
    assert "3 of 4 active jobs have a bottleneck" in shown
    assert "996 of 1000 agents connected" in shown
    assert "silent for 60.0 s" in shown
    assert "ALERT PerfdXid  GPU 4 reports XID 79" in shown


def test_a_silent_job_says_that_its_numbers_are_old() -> None:
    assert (
        "silent for 45.0 s: numbers are old"
        in drawn(job_screen(job_entry("llama", silent_s=45.0), [], 80, 22))[0]
    )


def test_a_job_shows_its_step_as_a_bar_as_wide_as_the_terminal() -> None:
    job = job_entry(
        "llama",
        breakdown={"forward_ratio": 0.25, "backward_ratio": 0.5},
        communication={"share_ratio": 0.25},
    )
    bar = next(line for line in drawn(job_screen(job, [], 80, 22)) if line.startswith("████"))

    assert bar == "█" * 80
    assert "forward 25.0%" in "\n".join(drawn(job_screen(job, [], 80, 22)))


def test_servers_are_beside_theory_and_the_chosen_ones_findings_are_said() -> None:
    finding = {"name": "PerfdServerQueue", "summary": "12 requests wait", "advice": ""}
    servers = [server_entry("h:1"), server_entry("h:2", up=False, theory=None, findings=[finding])]
    shown = drawn(server_screen(servers, 0, 80, 20))

    first, second = (next(line for line in shown if name in line) for name in ("h:1", "h:2"))
    for value in ("200", "71.0%", "310.0 ms", "12.0 ms", "45.0 ms", "12.1 ms"):
        assert value in first
    assert second.startswith("> down n1 h:2")
    assert shown[-2] == "sglang 0.5.9, meta-llama/Llama-3.3-70B-Instruct, tp 8"
    assert "PerfdServerQueue  12 requests wait" in shown[-1]
    assert max(map(len, shown)) <= 80


def test_servers_that_are_down_or_silent_come_before_those_with_findings() -> None:
    finding = {"name": "PerfdServerQueue", "summary": "", "advice": ""}
    servers = [
        server_entry("well:1"),
        server_entry("queue:1", findings=[finding]),
        server_entry("silent:1", silent_s=100.0),
        server_entry("down:1", up=False),
    ]
    ordered = [one["server"] for one in server_order(servers)]
    assert ordered == ["down:1", "silent:1", "queue:1", "well:1"]


def test_a_culprit_is_first_also_when_its_numbers_are_usual() -> None:
    job = job_entry("llama", ranks=40, bottleneck=straggler(3, 0.2))
    job["gpus"][30]["power_w"] = 50.0
    lines = one_job(job, 80, 24)
    heading = next(number for number, line in enumerate(lines) if line.startswith("RANK"))
    assert [line.split()[1] for line in lines[heading + 1 : heading + 3]] == ["3", "30"]


def test_a_wide_screen_shows_the_engines_and_models_of_all_servers() -> None:
    unknown = {"engine": None, "version": None, "model": None, "role": None}
    servers = [
        server_entry("h:1", role="prefill"),
        server_entry("h:2", engine="vllm", model="/models/of/some/team/" + "x" * 40 + "/final"),
        server_entry("h:3", **unknown, parallel=dict.fromkeys(("tp", "pp", "dp"))),
    ]
    shown = drawn(server_screen(servers, 0, 160, 20), 160)

    one, two, three = (next(line for line in shown if name in line).split() for name in ("h:1", "h:2", "h:3"))
    assert one[3:5] == ["sglang", "meta-llama/Llama….3-70B-Instruct"]
    assert two[2] == "vllm"
    assert two[3].endswith("xx/final")
    assert three[2:4] == ["-", "-"]
    assert shown[-1] == "sglang 0.5.9, meta-llama/Llama-3.3-70B-Instruct, prefill, tp 8"
    assert "None" not in "".join(drawn(server_screen(servers, 2, 160, 20), 160))


def test_names_are_shown_as_they_are_and_not_as_markup() -> None:
    name = "[red]x[/red]"
    job = fleet_row(name, bottleneck={**straggler(1, 0.1), "culprits": [{"kind": name, "id": name}]})
    shown = [
        *drawn(fleet_screen(answered(job), at(0), 160, 20), 160),
        *one_job(job_entry(name, framework=name), 160, 20),
        *drawn(server_screen([server_entry(name, node=name)], 0, 160, 20), 160),
    ]

    assert sum(line.count(name) for line in shown) >= 6


def test_without_anything_there_are_sentences() -> None:
    assert "No jobs yet" in drawn(fleet_screen(answered(), at(0), 80, 20))[-1]
    assert "No serving engines yet" in drawn(server_screen([], 0, 80, 20))[0]
    assert any("leave" in line for line in drawn(help_screen()))


def test_a_wide_terminal_shows_trends_and_more_of_the_ranks() -> None:
    job = job_entry("llama", ranks=16, slow=3)
    for gpu in job["gpus"]:
        gpu |= {
            "memory_used_ratio": 0.5,
            "temperature_celsius": 61.0,
            "sm_clock_hz": 1.755e9,
        }
    series = {"step": [1, 2, 3], "step_time_s": [0.5, 0.5, 1.0], "mfu_ratio": [0.4, None, 0.2]}
    wide = one_job(job, 200, 58, series)

    assert "step ▁▁█  500.0 ms to 1000.0 ms over steps 1 to 3" in wide
    assert "MFU  █ ▁  20.0% to 40.0% over steps 1 to 3" in wide
    heading = next(line for line in wide if line.startswith("RANK"))
    assert heading.split() == ["RANK", "SM", "TENSOR", "DRAM", "POWER", "MEMORY", "TEMP", "CLOCK"]
    (slow,) = [line for line in wide if line.startswith("rank 3 ")]
    assert slow.split()[2:] == [
        "node0/3",
        "72.0%",
        "38.0%",
        "40.0%",
        "650",
        "W",
        "50.0%",
        "61",
        "°C",
        "1755",
        "MHz",
    ]
    narrow = one_job(job, 80, 22, series)
    assert not any("over steps" in line for line in narrow)


@pytest.mark.parametrize(("doubt", "title"), [(None, "step"), ("micro-batch", "step?")])
def test_a_step_that_may_be_something_else_has_a_question_mark(doubt: str | None, title: str) -> None:
    job = job_entry("llama")
    job["steps"]["doubt"] = doubt
    (numbers,) = [line for line in one_job(job) if line.startswith("MFU")]
    assert title in numbers.split()

    row = fleet_row("llama", owner="nlp", wasted_gpu_h=12.34, trend_step_time_s=[0.5, 1.0])
    (line,) = drawn(fleet_screen(answered(row), at(0), 200, 20), 200)[-1:]
    assert all(value in line for value in ("▁█", "nlp", "12.3"))
    assert "nlp" not in "".join(drawn(fleet_screen(answered(row), at(0), 120, 20), 120))


@given(st.lists(st.one_of(st.none(), st.floats())), st.integers(1, 40))
def test_a_sparkline_fits_and_has_a_place_for_each_number(values: list[float | None], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) in {0, min(len(values), width)}


def test_a_sparkline_is_flat_for_noise_and_shows_the_largest_of_what_shares_a_place() -> None:
    assert len(set(sparkline([100.0, 101.0, 99.0], 3))) == 1
    assert sparkline([1.0, 1.0, 1.0, 9.0, 1.0, 1.0], 3) == "▁█▁"
    assert sparkline([None, None], 2) == ""


# Keys


def test_keys_choose_open_and_go_back() -> None:
    names = [f"job-{number}" for number in range(30)]
    place = ScreenPosition()
    for key in ("down", "j", "page down", "up", "k"):
        place = press(place, key, names)
    assert place.row == 10

    opened = press(place, "enter", names)
    assert (opened.screen, opened.job) == (Screen.JOB, "job-10")
    assert press(opened, "h", names).screen is Screen.JOBS
    assert (press(opened, "s", names).screen, press(opened, "s", names).row) == (Screen.SERVERS, 0)
    assert press(opened, "?", names).screen is Screen.HELP
    assert press(opened, "q", names).leaving
    assert press(opened, "x", names) == opened


def test_keys_sort_and_reverse() -> None:
    place, shown = ScreenPosition(row=7), orders(80)
    assert shown == ["name", "step", "step_time", "mfu", "gain", "alerts"]

    place = press(press(place, ">", [], shown), ">", [], shown)
    assert (place.sort, place.down, place.row) == ("step", True, 0)
    assert not press(place, "r", [], shown).down
    place = press(place, "<", [], shown)
    assert (place.sort, place.down) == ("name", False)
    assert press(press(place, "<", [], shown), "<", [], shown).sort == "alerts"
    # A column that a smaller terminal does not show.
    assert press(ScreenPosition(sort="owner"), ">", [], shown).sort == "name"


def test_what_is_typed_after_a_slash_chooses_the_jobs() -> None:
    place = ScreenPosition(row=7)
    for key in ("/", "q", "s", "x", "backspace", "down", "ä"):
        place = press(place, key, [])
    assert (place.words, place.typing, place.row, place.leaving) == ("qsä", True, 0, False)
    place = press(place, "enter", [])
    assert (place.words, place.typing) == ("qsä", False)
    assert press(place, "escape", []).words == ""
    assert press(press(place, "/", []), "escape", []).words == ""

    rows = [fleet_row("llama"), fleet_row("mistral")]
    lines = drawn(fleet_screen(answered(*rows, q="mis"), ScreenPosition(words="mis", typing=True), 80, 20))
    assert "/mis_" in lines
    assert "> mistral" in lines[-1]
    lines = drawn(fleet_screen(answered(*rows, q="x"), ScreenPosition(words="x"), 80, 20))
    assert lines[-1] == "No job matches 'x'; escape shows all."


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_clicks_choose_open_and_sort(width: int) -> None:
    shown = answered(*(fleet_row(f"job-{number:02}") for number in range(40)))
    lines = drawn(fleet_screen(shown, at(0), width, 20), width)
    heading = next(number for number, line in enumerate(lines) if "LIMITED BY" in line)
    (line,) = [number for number, text in enumerate(lines) if "job-05" in text]

    chosen = fleet_click(shown, at(0), width, 20, (3, line))
    assert (chosen.row, chosen.screen) == (5, Screen.JOBS)
    opened = fleet_click(shown, at(5), width, 20, (3, line))
    assert (opened.screen, opened.job) == (Screen.JOB, "job-05")
    for title, order in (("JOB", "name"), ("MFU", "mfu"), ("LIMITED BY", "gain")):
        place = fleet_click(shown, at(5), width, 20, (lines[heading].index(title) + 1, heading))
        assert (place.sort, place.row) == (order, 0), title
        again = fleet_click(shown, place, width, 20, (lines[heading].index(title) + 1, heading))
        assert (again.sort, again.down) == (order, not place.down)
        arrow = drawn(fleet_screen(shown, place, width, 20), width)[heading]
        assert f"{title}{'▾' if place.down else '▴'}" in arrow
    for outside in (0, len(lines) - 1, 500):
        assert fleet_click(shown, at(5), width, 20, (3, outside)) == at(5)


@given(st.integers(0, 300), st.integers(0, 100), st.integers(0, 60), st.integers(1, 250), st.integers(-3, 80))
@example(column=0, line=3, count=1, width=1, room=0)
def test_clicks_anywhere_lead_to_a_job_that_is_there(
    column: int, line: int, count: int, width: int, room: int
) -> None:
    shown = answered(*(fleet_row(f"job-{number}") for number in range(count)))
    place = fleet_click(shown, at(0), width, room, (column, line))
    assert place.row == 0 or place.row < count


@given(
    st.lists(st.sampled_from(["up", "down", "page up", "page down", "enter", "h", "s"])), st.integers(0, 50)
)
def test_no_keys_lead_out_of_the_list(pressed: list[str], count: int) -> None:
    place, names = ScreenPosition(), [str(number) for number in range(count)]
    for key in pressed:
        place = press(place, key, names)
        assert place.row == 0 or place.row < count


@given(st.integers(1, 1000), st.integers(0, 2000), st.integers(-5, 100))
def test_the_chosen_line_is_among_those_that_are_shown(count: int, row: int, room: int) -> None:
    shown = window(count, min(row, count - 1), room)

    assert min(row, count - 1) in shown or room < 1
    assert len(shown) <= max(room, 1)


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (b"\x1b[A\x1b[Bq", ["up", "down", "q"]),
        (b"\x1bOA", ["up"]),
        (b"h\r", ["h", "enter"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[1;5Cq", [None, "q"]),
        (b"\xc3\xa4j\x7f", ["ä", "j", "backspace"]),
        (b"\xffj", [None, "j"]),
        (b"\x1b[<0;12;5M\x1b[<0;12;5mq", ["click 11 4", None, "q"]),
        (b"\x1b[<64;1;1M\x1b[<65;1;1M\x1b[<2;1;1M", ["wheel up", "wheel down", None]),
    ],
)
def test_what_terminals_send_is_distinguished(typed: bytes, names: list[str | None]) -> None:
    found = []
    while typed:
        key, length = first_key(typed)
        found.append(key)
        typed = typed[length:]
    assert found == names


@given(st.binary(min_size=1, max_size=64))
def test_any_bytes_are_used_up(typed: bytes) -> None:
    assert 0 < first_key(typed)[1] <= len(typed)


# In a terminal


@contextmanager
def terminal(url: str, width: int = 80, height: int = 24) -> Iterator[int]:
    """`perfd top` in a terminal; its other end."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "perfd", "top", "--aggregator", url, "--interval", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield ours
        os.write(ours, b"q")
        drain(ours)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def drain(file: int) -> None:
    while True:
        try:
            if not os.read(file, 4096):
                return
        except OSError:
            return


def read_until(file: int, words: str) -> None:
    seen = b""
    while words.encode() not in seen:
        seen += os.read(file, 4096)


def test_an_aggregator_that_goes_away_and_comes_back_is_said_and_the_screen_stays() -> None:
    stand_in = StandIn()
    stand_in.answers["fleet"] = fleet(fleet_row("llama"), fleet_row("mistral"))
    try:
        with terminal(stand_in.url) as screen:
            read_until(screen, "mistral")
            answers = stand_in.answers["fleet"]
            stand_in.answers["fleet"] = Response(status=503, body=b'{"error": "History is away."}')
            read_until(screen, "retrying.")
            read_until(screen, "mistral")
            # A view that cannot be asked for does not take the old one away.
            stand_in.answers["servers"] = stand_in.answers["fleet"]
            os.write(screen, b"s")
            read_until(screen, "mistral")
            os.write(screen, b"h")
            stand_in.answers["fleet"] = answers
            stand_in.answers["jobs"] = {"jobs": [job_entry("llama")]}
            os.write(screen, b"\r")
            read_until(screen, "rank 7")
    finally:
        stand_in.close()


def test_one_job_is_opened_at_once() -> None:
    stand_in = StandIn()
    stand_in.answers |= {
        "fleet": fleet(fleet_row("llama")),
        "jobs": {"jobs": [job_entry("llama", slow=3)]},
    }
    try:
        with terminal(stand_in.url) as screen:
            read_until(screen, "straggler")
    finally:
        stand_in.close()


def test_without_a_terminal_it_looks_once() -> None:
    stand_in = StandIn()
    stand_in.answers["fleet"] = fleet(fleet_row("llama"))
    command = [sys.executable, "-m", "perfd", "top", "--aggregator", stand_in.url]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        stand_in.close()

    assert "llama" in done.stdout


def test_weak_and_old_findings_are_said_to_be_so_and_an_ended_job_gets_advice_for_its_next_run() -> None:
    found = {
        "kind": "communication", "name": "communication", "certainty": "possible", "may_be_over": True,
        "gain_ratio": 0.6, "culprits": [], "evidence": ["Collectives take 60.1%."], "advice": "Capture it.",
    }  # fmt: skip
    lines = drawn(job_screen(job_entry("llm", bottleneck=found), [], 100, None))
    assert any(
        "may be limited by communication  may cost up to 60.0% of the time  may be over" in line
        for line in lines
    )
    assert any("do: Capture it." in line for line in lines)
    over = drawn(job_screen(job_entry("llm", bottleneck=found, ended=True, outcome="failed"), [], 100, None))
    assert any("for the next run: Capture it." in line for line in over)


@pytest.mark.parametrize(
    ("outcome", "words"), [("out_of_memory", "llm  ended: out of memory "), ("unknown", "llm  ended ")]
)
def test_a_job_that_ended_is_shown_with_how(outcome: str, words: str) -> None:
    lines = drawn(job_screen(job_entry("llm", ended=True, outcome=outcome), [], 80, None))
    assert any(words in line for line in lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12), (0, 0)])
def test_a_terminal_of_any_size_shows_sorts_filters_and_opens(width: int, height: int) -> None:
    stand_in = StandIn()
    stand_in.answers |= {
        "fleet": fleet(*(fleet_row(f"job-{number}", mfu_ratio=number / 10) for number in range(5))),
        "jobs": {"jobs": [job_entry("job-3", slow=3)]},
    }
    stand_in.answers["fleet"]["alerts"] = []
    series = {"step": [1, 2], "step_time_s": [0.5, 0.9], "mfu_ratio": [0.4, 0.2]}
    stand_in.answers["jobs/job-3/series"] = series
    try:
        with terminal(stand_in.url, width, height) as screen:
            read_until(screen, "job-4")
            # The heading that a click sorts by is the third line, below the title and the counts.
            os.write(screen, b"\x1b[<0;2;3M")
            read_until(screen, "JOB\u25b4")
            os.write(screen, b"/job-3\r")
            read_until(screen, "/job-3")
            os.write(screen, b"\r")
            read_until(screen, "straggler")
            if width >= 110:
                read_until(screen, "over steps 1 to 2")
    finally:
        stand_in.close()
