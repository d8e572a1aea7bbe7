"""Jobs whose limit is known, on real GPUs: does perfd say it while they run, and after a capture.

    python -m benchmarks.gpu.limits --out FOLDER [--gpus 1] [--only host_copies] [--torchrun PATH] [--dry-run]

Runs `train.py` under `perfd run --kineto` once for each case: as it is; with every step's time spent in
element-wise kernels, in copies from the host, in tiny kernels, behind a synchronisation, or waiting for
input. A rule asks for one capture of all ranks. Printed is the first finding of the last look before the
capture was there, and of the summary. `--dry-run` is a job for CPUs, to try it: verdicts mean nothing there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.fault_runs import Watcher
from tests.support.services import free_port

SCHEMA = "perfd.bench.gpu.limits/1"
TRAIN = Path(__file__).with_name("train.py")
JOB = "limits"
_LIMIT_S = 120.0
_DRY_RUN = ("--layers", "2", "--hidden", "64", "--sequence", "16", "--micro-batch", "2")
_CAPTURE_FROM_STEP = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What every step does too much of, and what may be said of it without a capture and with one."""

    fault: str
    strength: float
    steps: int
    live: frozenset[str]
    captured: frozenset[str]


_IDLE = frozenset({"host_bound", "launch_bound"})
CASES = (
    Case(
        fault="none", strength=0, steps=450,
        live=frozenset({"none", "compute"}), captured=frozenset({"none", "compute"}),
    ),
    Case(
        fault="elementwise", strength=600, steps=110,
        live=frozenset({"memory_bound"}), captured=frozenset({"memory_bound"}),
    ),
    Case(
        fault="host_copies", strength=8, steps=170,
        live=frozenset({"host_transfer"}), captured=frozenset({"host_transfer"}),
    ),
    Case(fault="all_tiny_kernels", strength=0.3, steps=200, live=_IDLE, captured=frozenset({"launch_bound"})),
    Case(fault="forced_syncs", strength=0.05, steps=320, live=_IDLE, captured=frozenset({"synchronization"})),
    Case(
        fault="slow_loaders", strength=0.1, steps=230,
        live=_IDLE | {"data_loading"},
        captured=frozenset({"launch_bound", "host_bound", "synchronization", "data_loading"}),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was said first of one case."""

    fault: str
    live: str | None
    captured: str | None
    """Of the summary, None when no capture was analysed before the job's end."""
    live_right: bool
    captured_right: bool | None
    evidence: Sequence[str]


def configuration(folder: Path, *, dry: bool) -> Path:
    """One capture of all ranks, once the job is steady."""
    alert = {
        "alert": "Steady",
        "expr": f"perfd_step >= {_CAPTURE_FROM_STEP}",
        "labels": {"severity": "info", "capture": "try"},
        "annotations": {"summary": "Step {{ $value }}."},
    }
    rules = folder / "rules.json"
    # JSON is YAML.
    rules.write_text(json.dumps({"groups": [{"name": "try", "interval": "1s", "rules": [alert]}]}))
    profile = {"tool": "kineto", "ranks": "all", "steps": 3, "max_duration_s": 20, "cooldown_s": 3600}
    document = {
        "agent": {"capture": {"min_free_bytes": 0, "kineto": {"enabled": True, "cpu_only": dry}}},
        "aggregator": {
            "rules": {"builtin": False, "files": [str(rules)], "interval_s": 1},
            "capture_profiles": {"try": profile},
        },
    }
    path = folder / "perfd.json"
    path.write_text(json.dumps(document))
    return path


def run_case(case: Case, command: Sequence[str], folder: Path, *, dry: bool) -> Outcome | None:
    """Train once; None when there is no summary."""
    folder.mkdir(parents=True)
    port = free_port()
    perfd = [
        *(sys.executable, "-m", "perfd", "run", "--kineto", "--job", JOB, "--http", f"127.0.0.1:{port}"),
        *("--config", str(configuration(folder, dry=dry)), "--out", str(folder / "out"), "--"),
        *command,
        *("--fault", case.fault, "--fault-strength", str(case.strength), "--fault-from", "1"),
        *("--steps", str(60 if dry else case.steps), "--print-every", "1"),
    ]
    watcher = Watcher(f"http://127.0.0.1:{port}/api/v1/jobs/{JOB}")
    watcher.start()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(perfd, stdout=log, stderr=log)
        try:
            process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
    seen = [said for _, said in watcher.stop() if said]
    summaries = sorted(folder.glob("out/*/summary.json"))
    if not summaries:
        return None
    findings = json.loads(summaries[-1].read_text())["jobs"][0]["findings"]
    before = [said for said in seen if not _of_capture(said)]
    live = before[-1][0]["kind"] if before else None
    captured = findings[0]["kind"] if _of_capture(findings) else None
    return Outcome(
        fault=case.fault,
        live=live,
        captured=captured,
        live_right=live in case.live,
        captured_right=None if captured is None else captured in case.captured,
        evidence=findings[0]["evidence"],
    )


def _of_capture(findings: Sequence[dict[str, Any]]) -> bool:
    return any("capture " in sentence for finding in findings for sentence in finding["evidence"])


def main() -> int:
    """Run the cases, print, and return 1 when one is not as it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--only", help="this case alone")
    parser.add_argument("--torchrun", default="torchrun", help="the program")
    parser.add_argument("--dry-run", action="store_true", help="a job for CPUs")
    args = parser.parse_args()
    command = [args.torchrun, "--nproc-per-node", str(args.gpus), str(TRAIN)]
    command += _DRY_RUN if args.dry_run else ()
    folder: Path = args.out.resolve()
    outcomes = []
    for case in CASES:
        if args.only not in (None, case.fault):
            continue
        began_s = time.monotonic()
        outcome = run_case(case, command, folder / case.fault, dry=args.dry_run)
        print(f"{case.fault}: {outcome} in {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    found = [one for one in outcomes if one is not None]
    print(json.dumps({"schema": SCHEMA, "outcomes": [asdict(one) for one in found]}, indent=1))
    right = [one.live_right and one.captured_right for one in found]
    return 0 if outcomes and len(found) == len(outcomes) and all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
