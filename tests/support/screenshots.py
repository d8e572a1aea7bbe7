"""Takes the pictures of the documentation: `python -m tests.support.screenshots [FOLDER]`.

It plays recordings that ship, and made-up answers where none is large enough, into a real Chromium.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from perfd.aggregator.aggregator import Aggregator
from perfd.recording.recording_format import find_recording
from perfd.session.replay_session import ReplayOptions, replay
from tests.support.chromium import Browser, chromium
from tests.support.page_server import StandIn, fleet_row, job_entry, server_entry

_WHOLE_PAGE = 4000
_JOB = "document.getElementById('mfu-chart-drawing')?.querySelector('canvas')"


def main(folder: Path) -> None:
    """Write all pictures into a folder."""
    with chromium() as browser:
        _played(browser, "dp4_slow2", {"straggler": (1280, 1600, False), "phone": (390, 1500, False)}, folder)
        _played(browser, "pp4_few", {"pipeline-dark": (1280, 1800, True)}, folder)
        _made_up(browser, folder)


def _played(browser: Browser, name: str, pictures: Mapping[str, tuple[int, int, bool]], folder: Path) -> None:
    def take(_: object, aggregator: Aggregator) -> None:
        url = f"http://{aggregator.http_address}/jobs/{name}"
        for picture, (width, height, dark) in pictures.items():
            _take(browser, url, _JOB, folder / f"page-{picture}.png", width=width, height=height, dark=dark)

    replay(ReplayOptions(recording=find_recording(name), http="127.0.0.1:0"), on_end=take)


def _made_up(browser: Browser, folder: Path) -> None:
    stand_in = StandIn()
    try:
        for name, path, shown, height, fill in (
            ("fleet", "/", "main", 760, _fleet),
            ("ranks", "/jobs/llama-405b", "[data-section=ranks]", 920, _ranks),
            ("serving", "/servers", "main", 760, _serving),
        ):
            fill(stand_in)
            ready = f"document.querySelector('{shown} table, {shown} article')"
            _take(
                browser, stand_in.url + path, ready, folder / f"page-{name}.png", height=height, shown=shown
            )
    finally:
        stand_in.close()


def _take(
    browser: Browser,
    url: str,
    ready: str,
    file: Path,
    *,
    width: int = 1280,
    height: int,
    dark: bool = False,
    shown: str = "main",
) -> None:
    tab = browser.tab()
    # What is far below the screen is not drawn.
    tab.look(width, height if shown == "main" else _WHOLE_PAGE, dark=dark, calm=True)
    tab.open(url, ready)
    tab.wait("document.getElementById('updated').dataset.how === 'live'")
    # The canvases are painted with the next frame.
    tab.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    edge = f"Math.ceil(document.querySelector('{shown}').getBoundingClientRect()"
    # With the section's heading, which is in the one before it.
    before = edge.replace(".getBounding", ".previousElementSibling.getBounding")
    top = 0 if shown == "main" else tab.run(f"{before}.top)")
    file.write_bytes(tab.picture(top=top, height=min(height, tab.run(f"{edge}.bottom)") - top)))
    tab.close()


def _fleet(stand_in: StandIn) -> None:
    kinds = ("straggler", "pipeline_bubble", "communication", "compute", "none", "compute", "data_loading")
    jobs = []
    for number in range(500):
        kind = kinds[number % len(kinds)]
        held_up = kind not in {"compute", "none"}
        culprits = [{"kind": "rank", "id": number % 64}] if kind == "straggler" else []
        jobs.append(
            fleet_row(
                f"pretrain-{number:03}",
                mfu_ratio=0.31 + (number * 37 % 200) / 1000,
                step_time_s=0.4 + (number * 53 % 900) / 300,
                tokens_per_s=80_000.0 + number * 613 % 40_000,
                ended=number % 9 == 8,
                silent_s=95.0 if number % 41 == 7 else 0.3,
                firing_alerts=number % 3 if held_up else 0,
                bottleneck={
                    "kind": kind,
                    "gain_ratio": (number * 17 % 40) / 100 if held_up else None,
                    "culprits": culprits,
                    "culprit_count": len(culprits),
                },
            )
        )
    agents, servers = {"count": 1000, "connected": 998}, {"count": 6, "up": 6}
    stand_in.answers["fleet"] = {"jobs": jobs, "alerts": [], "agents": agents, "servers": servers}


def _ranks(stand_in: StandIn) -> None:
    finding = {
        "kind": "straggler",
        "confidence": 0.9,
        "certainty": "measured",
        "gain_ratio": 0.21,
        "culprits": [{"kind": "rank", "id": 517}],
        "evidence": ["The tensor cores of rank 517 are active 1.86 times as much as those of its peers."],
    }
    job = job_entry("llama-405b", ranks=1024, slow=517, framework="megatron-lm", bottleneck=finding)
    stand_in.answers["jobs"] = {"jobs": [job]}


def _serving(stand_in: StandIn) -> None:
    finding = {
        "name": "PerfdServerTailLatency",
        "summary": "Tokens of 10.0.0.5:30000 stall: p99 of the time between them is 45ms",
        "advice": "Decode alone is even, so prefill holds it up. Prefill in smaller pieces "
        "(SGLang: --chunked-prefill-size; vLLM: --max-num-batched-tokens), or on separate servers.",
    }
    stand_in.answers["servers"] = {"servers": [server_entry("10.0.0.5:30000", findings=[finding])]}


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
