"""First screens of 20 jobs whose truth is known, for people who have never seen them to judge.

    python -m benchmarks.first_screens FOLDER --labels FILE [--seed 1]

Writes 01.png to 20.png (1280 x 800, in random order, without the names of jobs), and to FILE what is true of
each: `schema`, and `screens` with `picture`, `recording`, `cause`, `culprit` (null where nobody is to blame),
`healthy`, `accepted` (other right headlines, by their kind), `lost_ratio` (measured, of a step) and `source`.
Show each for five seconds and ask: what limits this job, and who?

The jobs: every recording that ships, of each fault of `gpu/recorded` the first run (by name) that loses a
tenth of a step or has a layout or link to blame, of three jobs of `gpu/recorded_phases` the costliest fault
of a kind, and three shared recordings (`PERFD_SHARED`). The moment is the end of the recording, or of the
fault. What perfd says of a job plays no part in the choice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.headlines.truth import Truth, truth_of
from perfd.errors import PerfdError
from perfd.recording import bundled, bundled_names
from perfd.session.replay_session import ReplayOptions, ReplayProgress, replay
from tests.support.chromium import Browser, Tab, chromium

SCHEMA = "perfd.bench.first-screens/1"
_SIZE = (1280, 800)
_GPU = Path(__file__).with_name("gpu")
_LEAST_LOST = 0.1
_TICK_S = 1.0
_FAULTS = {
    "late_entry": "one rank enters collectives late: its host sleeps before them",
    "no_p2p": "communication: GPUs cannot reach each other directly (NCCL_P2P_DISABLE)",
    "none": None,
    "slow_loader": "the data loader of one rank is slow",
    "slow_loaders": "the data loaders of all ranks are slow",
    "slow_rank": "one rank's GPU does more work than its peers' (straggler)",
    "tiny_kernels": "one rank launches many tiny kernels, so that its host is late (straggler)",
    "forced_sync": "one rank's host waits for its GPU and sleeps (straggler)",
    "heavy_last_stage": "the last pipeline stage has more work than the others (imbalance)",
}
_BLAMELESS = frozenset({"none", "slow_loaders", "no_p2p", "heavy_last_stage"})
_PHASES = (("ddp", "loader"), ("ddp2", "host"), ("fsdp2", "stall"))
_OF_PHASES = {
    "host": "one rank's host is slow (straggler)",
    "stall": "one rank's host stops at every fifth step (straggler)",
    "loader": "the next batch comes late on all ranks (data loading)",
}
_OTHERS = {
    "dp2_nccl": None,
    "dp4": None,
    "dp4_slow2": _FAULTS["slow_rank"],
    "pp2dp2": None,
    "pp4_few": "too few micro-batches for the pipeline (bubble)",
    "live_tp2dp2": "the hosts launch kernels too slowly (launch-bound, host-bound)",
    "live_ep4": "experts are unevenly loaded, so that ranks wait in all-to-all (imbalance, communication)",
    "live_hf_trainer5": None,
}
_SHARED = tuple(name for name in _OTHERS if name.startswith("live_"))
_DRAWN = (
    "performance.getEntriesByName('shown').length && document.querySelector('main canvas')"
    " && document.getElementById('updated').dataset.how === 'live'"
)
_WITHOUT_NAME = """
((name) => {
  const whole = new RegExp(`(?<![\\w-])${name}(?![\\w-])`, "g");
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(whole, "this job");
})(%s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A job at one moment, and what is true of it then."""

    picture: str = ""
    recording: str
    cause: str | None
    """None where nothing is wrong."""
    culprit: str | None
    """None where no rank is to blame."""
    healthy: bool
    accepted: tuple[str, ...]
    """Kinds of findings that are right as well, by `benchmarks.headlines`; empty where only the cause is."""
    lost_ratio: float | None
    source: str
    path: Path
    at_unix_s: float | None = None
    """None for the end of the recording."""


def screens() -> list[Screen]:
    """All of them, in the order of their sources."""
    return [*_of_runs(), *_of_phases(), *_of_recordings()]


def _of_recordings() -> list[Screen]:
    paths = {name: bundled(name) for name in bundled_names()}
    shared = os.environ.get("PERFD_SHARED")
    if shared is None:
        raise PerfdError("PERFD_SHARED is not set: three of the jobs are shared recordings.")
    paths |= {name: Path(shared) / "recordings" / name for name in _SHARED}
    found = []
    for name, cause in _OTHERS.items():
        truth = truth_of(paths[name])
        assert truth is not None
        found.append(_screen(name, cause, truth, "benchmarks/headlines/truth.toml", paths[name]))
    return found


def _of_runs() -> list[Screen]:
    found: dict[str, Screen] = {}
    for case in sorted((_GPU / "recorded").glob("*/case.json")):
        fault = json.loads(case.read_text())["fault"]
        truth = truth_of(case.parent / "recording")
        assert truth is not None
        if fault in found or not (fault in _BLAMELESS or (truth.cost_ratio or 0.0) >= _LEAST_LOST):
            continue
        name, recording = case.parent.name, case.parent / "recording"
        found[fault] = _screen(name, _FAULTS[fault], truth, str(case), recording)
    return list(found.values())


def _of_phases() -> list[Screen]:
    found = []
    for name, kind in _PHASES:
        folder = _GPU / "recorded_phases" / name
        truth = truth_of(folder / "recording")
        assert truth is not None
        fault = max(
            (phase for phase in truth.phases if phase.fault == kind),
            key=lambda phase: phase.lost_ratio or 0.0,
        )
        screen = _screen(
            f"{name}: {kind}",
            _OF_PHASES[kind],
            replace(truth, ranks=fault.ranks, cost_ratio=fault.lost_ratio),
            str(folder / "truth.json"),
            folder / "recording",
        )
        found.append(replace(screen, at_unix_s=fault.end_unix_s))
    return found


def _screen(name: str, cause: str | None, truth: Truth, source: str, path: Path) -> Screen:
    return Screen(
        recording=name,
        cause=cause,
        culprit=", ".join(f"rank {rank}" for rank in sorted(truth.ranks)) or None,
        healthy=cause is None,
        accepted=tuple(sorted(truth.kinds)),
        lost_ratio=truth.cost_ratio,
        source=source.removeprefix(f"{_GPU.parents[1]}/"),
        path=path,
    )


def take(browser: Browser, screen: Screen, folder: Path) -> None:
    """Play a job to its moment, and write what its page shows without scrolling."""
    taken = False

    def look(progress: ReplayProgress) -> None:
        nonlocal taken
        now_unix_s = progress.start_unix_s + progress.played_s
        due = (
            progress.played_s >= progress.total_s - _TICK_S
            if screen.at_unix_s is None
            else now_unix_s >= screen.at_unix_s
        )
        jobs = progress.aggregator.jobs()
        if taken or not due or not jobs:
            return
        taken = True
        tab = browser.tab()
        _picture(tab, f"http://{progress.aggregator.http_address}", jobs[0], folder / screen.picture)
        tab.close()

    options = ReplayOptions(recording=screen.path, tick_s=_TICK_S, allow_missing=True, http="127.0.0.1:0")
    replay(options, on_progress=look)
    assert taken


def _picture(tab: Tab, url: str, job: str, file: Path) -> None:
    tab.look(*_SIZE, calm=True)
    tab.open(f"{url}/jobs/{job}", _DRAWN)
    tab.run(_WITHOUT_NAME % json.dumps(job))
    # The canvases are painted with the next frame.
    tab.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    file.write_bytes(tab.picture())


def main(argv: Sequence[str] | None = None) -> None:
    """Write the pictures and what is true of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--labels", type=Path, required=True, help="not in FOLDER: who judges must not see it"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    args = parser.parse_args(argv)
    chosen = screens()
    random.Random(args.seed).shuffle(chosen)
    chosen = [replace(screen, picture=f"{number:02}.png") for number, screen in enumerate(chosen, 1)]
    args.folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for screen in chosen:
            take(browser, screen, args.folder)
    labels = []
    for screen in chosen:
        label = asdict(screen)
        del label["path"], label["at_unix_s"]
        labels.append(label)
    args.labels.write_text(json.dumps({"schema": SCHEMA, "screens": labels}, indent=1) + "\n")


if __name__ == "__main__":
    main()
