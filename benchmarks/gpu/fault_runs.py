"""One training run under perfd with a fault in it: started, watched, recorded, and judged again later."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.faults.baselines import RULES
from benchmarks.without_rules import WITHOUT_RULES
from perfd.analysis.diagnosis import to_json
from perfd.session.replay_session import ReplayOptions, replay
from tests.support.services import free_port

TRAIN = Path(__file__).with_name("train.py")
JOB = "faults"
BLAMELESS = frozenset({"none", "slow_loaders", "heavy_last_stage", "no_p2p"})
"""Cases in which no single rank is to blame."""
BLAMING = frozenset({"straggler", "data_loading", "throttling", "hang"})
_POLL_S = 0.5
_HANG_S = 20.0
_ENDING_S = 60.0
_SETTLED_STEPS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is run. `rank` has the fault, though it may not be to blame."""

    fault: str
    strength: float
    rank: int
    stages: int

    @property
    def truth(self) -> list[int]:
        """Ranks to blame."""
        return [] if self.fault in BLAMELESS else [self.rank]

    @property
    def name(self) -> str:
        return f"{self.fault}-{self.strength:g}-rank{self.rank}-pp{self.stages}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all runs have in common."""

    gpus: int
    steps: int = 150
    fault_from: int = 50
    torchrun: Sequence[str] = ("torchrun",)
    train_options: Sequence[str] = ()
    pipeline_options: Sequence[str] = ("--micro-batch", "2", "--micro-batches", "4")
    """A step as long as the other ones."""
    limit_s: float = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run, its truth, and what was said of it."""

    case: Case
    before_s: float | None
    """Median step before the fault, and after."""
    after_s: float | None
    verdicts: list[tuple[float, str, list[Any]]] = field(default_factory=list)
    """Seconds since the fault began, or since the start; kind; ranks that are blamed."""
    kinds: list[str] = field(default_factory=list)
    blamed: list[Any] = field(default_factory=list)
    """At the end."""
    lost_ratio: float | None = None
    evidence: list[str] = field(default_factory=list)
    baselines: dict[str, list[int]] = field(default_factory=dict)
    """Whom simpler rules blame, given what every rank's own work really took."""

    @property
    def cost_ratio(self) -> float | None:
        """How much longer steps are with the fault."""
        if self.case.fault == "sigstop":
            return float("inf")
        return self.after_s / self.before_s - 1 if self.before_s and self.after_s else None

    @property
    def detected_after_s(self) -> float | None:
        """From the fault's beginning to the first word that names the right rank alone."""
        named = (at for at, _, ranks in self.verdicts if at >= 0 and ranks == self.case.truth)
        return next(named, None) if self.case.truth else None

    @property
    def ever_wrong(self) -> bool:
        """Whether anybody was blamed at any time who is not to blame, or before there was a fault."""
        return any(
            set(ranks) - set(self.case.truth if at >= 0 else []) for at, _, ranks in self.verdicts
        ) or bool(set(self.blamed) - set(self.case.truth))


def run_case(case: Case, plan: Plan, folder: Path) -> Outcome | None:
    """Train once under `perfd run`, with a recording; None when the job failed."""
    folder.mkdir(parents=True)
    times, recording, port = folder / "times.json", folder / "recording", free_port()
    command = [
        *(sys.executable, "-m", "perfd", "run", "--no-nsys", "--job", JOB, "--http", f"127.0.0.1:{port}"),
        *("--out", str(folder / "out"), "--record", str(recording), "--"),
        *(*plan.torchrun, "--nproc-per-node", str(plan.gpus), str(TRAIN)),
        *("--steps", str(plan.steps), "--stages", str(case.stages), "--times", str(times)),
        *("--fault", case.fault, "--fault-strength", str(case.strength), "--fault-rank", str(case.rank)),
        *("--fault-from", str(plan.fault_from), *plan.train_options),
        *(plan.pipeline_options if case.stages > 1 else ()),
    ]
    environment = dict(os.environ) | ({"NCCL_P2P_DISABLE": "1"} if case.fault == "no_p2p" else {})
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        watcher = Watcher(f"http://127.0.0.1:{port}/api/v1/jobs/{JOB}")
        watcher.start()
        ended_unix_s = _wait(process, case, plan, folder / "log")
        seen = watcher.stop()
    found = sorted(folder.glob("out/*/summary.json"))
    hangs = case.fault == "sigstop"
    if not found or (not hangs and (process.returncode != 0 or not times.is_file())):
        print(f"{case.name}: the job ended with {process.returncode}; see {folder}/log", file=sys.stderr)
        return None
    shutil.copy(found[-1], folder / "summary.json")
    shutil.rmtree(folder / "out")
    compress(recording)
    document = json.loads((folder / "summary.json").read_text())
    while_it_hung = [said for at, said in seen if at <= (ended_unix_s or 0)]
    if hangs and while_it_hung:
        # Of a job that was ended for it, what counts is what was said until then.
        document["jobs"][0]["findings"] = while_it_hung[-1]
    outcome = _outcome(case, folder, seen, document)
    (folder / "verdicts.json").write_text(json.dumps(outcome.verdicts))
    (folder / "case.json").write_text(
        json.dumps({"fault": case.fault, "strength": case.strength, "rank": case.rank, "stages": case.stages})
    )
    return outcome


def judge_again(folder: Path) -> Outcome:
    """What today's perfd says of a run that was recorded, from its records."""
    case = case_of(folder)
    options = ReplayOptions(recording=folder / "recording", allow_missing=True, config=WITHOUT_RULES)
    (summary,) = replay(options).summaries
    return _outcome(case, folder, [], to_json([summary]))


def compress(recording: Path) -> None:
    """Pack every stream of a recording, which is read packed as well."""
    manifest = recording / "recording.json"
    document = json.loads(manifest.read_text())
    for stream in document["streams"]:
        plain = recording / stream["path"]
        if plain.suffix == ".gz" or not plain.is_file() or stream["kind"] == "training-log":
            continue
        packed = plain.with_name(plain.name + ".gz")
        with plain.open("rb") as source, gzip.open(packed, "wb") as target:
            shutil.copyfileobj(source, target)
        plain.unlink()
        stream["path"] += ".gz"
    manifest.write_text(json.dumps(document, indent=1))


def _outcome(
    case: Case, folder: Path, seen: list[tuple[float, list[dict[str, Any]]]], document: dict[str, Any]
) -> Outcome:
    log = (folder / "log").read_text(errors="replace")
    reported = re.search(r"^\[fault\] ([\d.]+)", log, re.MULTILINE)
    began_unix_s = float(reported.group(1)) if reported else None
    start = began_unix_s if began_unix_s is not None else (seen[0][0] if seen else 0.0)
    job = document["jobs"][0]
    findings = job["findings"]
    worst = next((one for one in findings if one["kind"] in BLAMING), findings[0])
    before_s, after_s = _steps(folder / "times.json")
    return Outcome(
        case=case,
        before_s=before_s,
        after_s=after_s,
        verdicts=[(at - start, said[0]["kind"], _blamed(said)) for at, said in seen if said],
        kinds=[one["kind"] for one in findings],
        # A fault that cost little of the whole job is in its list of faults only.
        blamed=_blamed([*findings, *job["past"]["faults"]]),
        lost_ratio=worst["gain_ratio"],
        evidence=list(worst["evidence"]),
        baselines=baselines_of(folder),
    )


def _blamed(findings: Sequence[dict[str, Any]]) -> list[Any]:
    return sorted(
        {
            culprit["id"]
            for one in findings
            if one["kind"] in BLAMING
            for culprit in one["culprits"]
            if culprit["kind"] == "rank"
        }
    )


def case_of(folder: Path) -> Case:
    """What was run, as it is kept with its recording."""
    return Case(**json.loads((folder / "case.json").read_text()))


def cost_ratio_of(folder: Path) -> float | None:
    """How much longer steps were with the fault, by CUDA events; None of a job that never ended."""
    before_s, after_s = _steps(folder / "times.json")
    return after_s / before_s - 1 if before_s and after_s else None


def baselines_of(folder: Path) -> dict[str, list[int]]:
    """Whom simpler rules blame after the fault began; empty for a job that never ended."""
    times = folder / "times.json"
    if not times.is_file():
        return {}
    document = json.loads(times.read_text())
    own_s = np.array(document["own_s"]).T[document["fault_from"] :]
    return {name: sorted(rule(own_s)) for name, rule in RULES.items()}


def _steps(times: Path) -> tuple[float | None, float | None]:
    if not times.is_file():
        return None, None
    document = json.loads(times.read_text())
    seconds, first = document["seconds"], document["fault_from"] - 1
    return statistics.median(seconds[_SETTLED_STEPS:first]), statistics.median(seconds[first + 1 :])


def _wait(process: subprocess.Popen[bytes], case: Case, plan: Plan, log: Path) -> float | None:
    """Until the job ends; one that is stopped for good is ended some time after that, and this tells when."""
    deadline_s = time.monotonic() + plan.limit_s
    stopped_s = None
    while process.poll() is None:
        now_s = time.monotonic()
        if case.fault == "sigstop" and stopped_s is None and b"[fault]" in log.read_bytes():
            stopped_s = now_s
        if now_s > deadline_s or (stopped_s is not None and now_s > stopped_s + _HANG_S):
            ended_unix_s = time.time()
            _kill_stopped(process.pid)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING_S)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return ended_unix_s
        time.sleep(0.1)
    return None


def _kill_stopped(process_id: int) -> None:
    """A stopped process does not hear that it should end, and its launcher waits long for it."""
    for child in psutil.Process(process_id).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.status() == psutil.STATUS_STOPPED:
                child.kill()


class Watcher(threading.Thread):
    """Asks a live session what it says of a job, at its address there, twice a second."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ended = threading.Event()
        self._seen: list[tuple[float, list[dict[str, Any]]]] = []

    def run(self) -> None:
        while not self._ended.wait(_POLL_S):
            with contextlib.suppress(OSError, urllib.error.URLError, ValueError, LookupError):
                with urllib.request.urlopen(self._url, timeout=2) as answer:
                    said = json.load(answer)["jobs"][0]["findings"]
                self._seen.append((time.time(), said))

    def stop(self) -> list[tuple[float, list[dict[str, Any]]]]:
        """When it was asked, by the clock, and what it said: the findings."""
        self._ended.set()
        self.join()
        return self._seen
