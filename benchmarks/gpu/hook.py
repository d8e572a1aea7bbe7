"""`perfd.hook` in a real training loop: are its times the job's own, what does it cost, are its ranges there.

    python -m benchmarks.gpu.hook --out FOLDER [--gpus 2] [--rounds 3] [--no-capture]

`hooked.py` is run in turns without the hook, with it and no agent, and with it under `perfd run`, whose
recording is held against the job's own CUDA events, step by step. At last nsys takes a few steps, started by
a rule, and the hook's NVTX ranges are looked for in what `perfd analyze` says of them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import perfd
from perfd.model import StepPhases
from perfd.recording import open_recording
from perfd.wire.encoded_messages import decode_batch

SCHEMA = "perfd.bench.gpu.hook/1"
HOOKED = Path(__file__).with_name("hooked.py")
MODES = ("none", "no_agent", "agent")
_SETTLED_STEPS = 15
_LIMIT_S = 120
_DRY_RUN = ("--layers", "2", "--hidden", "64", "--sequence", "16", "--micro-batch", "2")
PHASES = ("forward", "backward", "optimizer")


def run_mode(mode: str, folder: Path, job: Sequence[str]) -> dict[int, dict[str, Any]]:
    """What each rank wrote. Raises `RuntimeError` when the job failed."""
    folder.mkdir(parents=True)
    command = [*job, "--times", str(folder), *(["--no-hook"] if mode == "none" else [])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERFD_")}
    environment["PYTHONPATH"] = f"{Path(perfd.__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"
    if mode == "agent":
        watcher = [sys.executable, "-m", "perfd", "run", "--no-nsys", "--job", "hooked"]
        command = [*watcher, "--out", str(folder / "out"), "--record", str(folder / "rec"), "--", *command]
    _run(command, environment, folder / "log")
    return {
        int(path.stem.removeprefix("rank-")): json.loads(path.read_text())
        for path in sorted(folder.glob("rank-*.json"))
    }


def _run(command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    with log.open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=out, env=environment, timeout=_LIMIT_S, check=False)
    if done.returncode:
        message = f"the job ended with {done.returncode}: see {log}"
        raise RuntimeError(message)


def reported(recording: Path) -> dict[tuple[int, str, int], float]:
    """By rank, phase and step, the seconds that a recording holds of the hook."""
    found = {}
    opened = open_recording(recording)
    for stream in opened.manifest.streams:
        if stream.kind != "records":
            continue
        data = io.BytesIO(opened.path_of(stream).read_bytes())
        while (batch := decode_batch(data)) is not None:
            for record in batch.records:
                if isinstance(record, StepPhases):
                    for name, time in record.phases.items():
                        for rank, seconds in time.by_rank.items():
                            found[rank, name, record.step] = seconds
    return found


def compared(
    reported_s: Mapping[tuple[int, str, int], float], ranks: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Of each phase: how many steps were told, and by how much they differ from the job's own events."""
    found = {}
    for name in PHASES:
        errors = [
            seconds / ranks[rank]["seconds"][name][step - 1] - 1
            for (rank, phase, step), seconds in reported_s.items()
            if phase == name and rank in ranks and 0 < step <= len(ranks[rank]["seconds"][name])
        ]
        found[name] = {
            "reported": len(errors),
            "steps": sum(len(rank["seconds"][name]) for rank in ranks.values()),
            "median_error_ratio": statistics.median(errors) if errors else None,
            "largest_error_ratio": max(map(abs, errors)) if errors else None,
        }
    return found


def overheads(runs: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """By mode, how much longer steps were than without the hook before and after, run by run."""
    without = [index for index, (mode, _) in enumerate(runs) if mode == "none"]
    found: dict[str, list[float]] = {}
    for before, after in pairwise(without):
        usual_s = (runs[before][1] + runs[after][1]) / 2
        found.setdefault("none", []).append(runs[after][1] / runs[before][1] - 1)
        for mode, step_s in runs[before + 1 : after]:
            found.setdefault(mode, []).append(step_s / usual_s - 1)
    return found


def captured_phases(folder: Path, job: Sequence[str]) -> list[dict[str, Any]]:
    """What `perfd analyze` tells of phases in a capture that a rule started."""
    folder.mkdir(parents=True)
    rules, configuration = folder / "rules.json", folder / "perfd.json"
    alert = {"alert": "Once", "expr": "perfd_step > 60", "labels": {"severity": "info", "capture": "try"}}
    rules.write_text(json.dumps({"groups": [{"name": "try", "interval": "1s", "rules": [alert]}]}))
    profile = {"tool": "nsys", "ranks": "all", "steps": 5, "max_duration_s": 30, "max_per_hour": 1}
    configuration.write_text(
        json.dumps(
            {
                # Named, so that the nsys of Nsight Compute is used as well.
                "agent": {"capture": {"min_free_bytes": 0, "nsys_path": shutil.which("nsys")}},
                "aggregator": {
                    "rules": {"builtin": False, "files": [str(rules)], "interval_s": 0.5},
                    "capture_profiles": {"try": profile},
                },
            }
        )
    )
    watcher = [sys.executable, "-m", "perfd", "run", "--job", "hooked", "--config", str(configuration)]
    watcher += ["--out", str(folder / "out"), "--"]
    _run([*watcher, *job, "--steps", "400", "--times", str(folder)], os.environ, folder / "log")
    traces = [str(path) for path in folder.rglob("*.sqlite")]
    if not traces:
        return []
    analysed = subprocess.run(
        [sys.executable, "-m", "perfd", "analyze", *traces, "--json"], capture_output=True, check=False
    )
    (folder / "analysis.json").write_bytes(analysed.stdout)
    ranks = json.loads(analysed.stdout)["ranks"] if analysed.stdout else []
    return [{"rank": rank["rank"], "phases": rank["phases"]} for rank in ranks]


def main() -> int:
    """Run all, print one object; 1 when a phase was not told, or no range was found in the capture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torchrun", default="torchrun", help="the program")
    parser.add_argument("--dry-run", action="store_true", help="a job for CPUs")
    parser.add_argument("--no-capture", action="store_true", help="for a machine without nsys")
    args = parser.parse_args()
    job = [args.torchrun, "--nproc-per-node", str(args.gpus), str(HOOKED)]
    job += _DRY_RUN if args.dry_run else ()
    runs: list[tuple[str, float]] = []
    document: dict[str, Any] = {"schema": SCHEMA}
    for number, mode in enumerate([*MODES * args.rounds, "none"]):
        folder = (args.out / f"{number:02}-{mode}").absolute()
        ranks = run_mode(mode, folder, job)
        step_s = statistics.median(ranks[0]["seconds"]["step"][_SETTLED_STEPS:])
        runs.append((mode, step_s))
        print(f"{number + 1}: {mode} {step_s:.6f}", file=sys.stderr, flush=True)
        if mode == "agent":
            document["reported"] = compared(reported(folder / "rec"), ranks)
        document["product"] = ranks[0].get("product", document.get("product"))
    document["runs"] = [{"mode": mode, "step_s": step_s} for mode, step_s in runs]
    document["overhead_ratio"] = overheads(runs)
    # Kept before the capture, which may take the job down.
    (args.out / "hook.json").write_text(json.dumps(document, indent=1))
    if not args.no_capture:
        document["captured"] = captured_phases((args.out / "capture").absolute(), job)
    print(json.dumps(document, indent=1))
    whole = all(document["reported"][name]["reported"] for name in PHASES)
    names = {row["name"] for rank in document.get("captured", ()) for row in rank["phases"]}
    return 0 if whole and (args.no_capture or names >= set(PHASES)) else 1


if __name__ == "__main__":
    sys.exit(main())
