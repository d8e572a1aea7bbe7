"""Captures that rules start on a real training job: is every rank's outcome right, and what do they cost.

    python -m benchmarks.gpu.captures --out FOLDER [--gpus 2] [--captures 30] [--rounds 2]
    python -m benchmarks.gpu.captures --out FOLDER --dry-run [--torchrun PROGRAM]

Runs `train.py` under `perfd run`, with nsys and with Kineto in turn (`--tools` names others). A rule on the
number of the step fires every so many steps, and each firing starts a capture of all ranks. The job ends by
itself, with 0 if no capture hurt it. A rank is right when it is done and its kernels are in its trace, as
this script reads it again, or when it is not done and has none there; so is a capture refused as a whole.
`--dry-run` has a stand-in nsys and a job on the CPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perfd.errors import PerfdError
from perfd.trace.readers.trace_files import read_traces
from tests.support import nsys_installation

HERE = Path(__file__).parent
EVERY_STEPS = {"nsys": 160, "kineto": 200, "py_spy": 60, "flight_recorder": 60}
"""About 12 and 16 s on 2 H200s: longer than a capture takes, so that none meets the one before it."""
DRY_EVERY_STEPS = {"nsys": 100, "kineto": 160, "py_spy": 60}
STEPS = 5
QUIET_S = 2.0
"""Steps so near to a capture do not count as undisturbed."""
_POLL_S = 0.25
_TRACES = (".sqlite", ".trace.json")
_TRACERS = ("nsys", "kineto")
"""Tools whose results have kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One job with its captures."""

    tool: str
    captures: int
    every_steps: int
    folder: Path
    port: int
    dry: bool
    gpus: int
    torchrun: str
    iteration_roundup: int | None = None

    @property
    def steps(self) -> int:
        """Until the last capture has ended; a firing is in the second half of its period."""
        return self.every_steps * self.captures + self.every_steps // 2 - 1

    @property
    def command(self) -> list[str]:
        """The job under `perfd run`."""
        script = HERE / ("train_stand_in.py" if self.dry else "train.py")
        return [
            *(
                sys.executable,
                "-m",
                "perfd",
                "run",
                "--job",
                "captures",
                "--config",
                str(self._configuration()),
            ),
            *("--out", str(self.folder / "out"), "--http", f"127.0.0.1:{self.port}"),
            *(() if self.tool == "nsys" else ("--no-nsys",)),
            *("--", "env", *self._environment()),
            *(self.torchrun, "--nproc-per-node", str(self.gpus), str(script)),
            *("--steps", str(self.steps), "--print-every", "1"),
        ]

    def _environment(self) -> Sequence[str]:
        """What the job needs for its tool."""
        if self.tool == "kineto":
            return ["KINETO_USE_DAEMON=1"]
        if self.tool == "flight_recorder":
            return [
                f"TORCH_NCCL_DEBUG_INFO_PIPE_FILE={self.folder}/ask_",
                f"TORCH_FR_DUMP_TEMP_FILE={self.folder}/dump_",
                f"TORCH_NCCL_DEBUG_INFO_TEMP_FILE={self.folder}/dump_",
                "TORCH_FR_BUFFER_SIZE=2000",
                "TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
            ]
        return []

    def _configuration(self) -> Path:
        half = self.every_steps // 2
        rules = self.folder / "rules.json"
        alert = {
            "alert": "EverySoManySteps",
            "expr": f"perfd_step % {self.every_steps} >= {half}",
            "labels": {"severity": "info", "capture": "try"},
            "annotations": {"summary": "Step {{ $value }}."},
        }
        # JSON is YAML.
        rules.write_text(json.dumps({"groups": [{"name": "try", "interval": "1s", "rules": [alert]}]}))
        profile = {"tool": self.tool, "ranks": "all", "steps": STEPS, "max_duration_s": 30}
        capture: dict[str, Any] = {
            "min_free_bytes": 0,
            "max_slowdown_ratio": None,
            "kineto": {
                "enabled": self.tool == "kineto",
                "cpu_only": self.dry,
                "iteration_roundup": self.iteration_roundup,
            },
        }
        # Named, so that the nsys of Nsight Compute is used as well.
        capture["nsys_path"] = shutil.which("nsys")
        if self.dry:
            capture["nsys_path"] = str(nsys_installation.install(self.folder / "nsys"))
        document = {
            "agent": {"capture": capture},
            "aggregator": {
                "rules": {"builtin": False, "files": [str(rules)], "interval_s": 0.5},
                "capture_profiles": {"try": {**profile, "cooldown_s": 0, "max_per_hour": 1000}},
            },
        }
        path = self.folder / "perfd.json"
        path.write_text(json.dumps(document))
        return path


@dataclass(slots=True, kw_only=True)
class Seen:
    """What became of one job."""

    tool: str
    exit_code: int | None = None
    captures: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports_s: dict[str, float] = field(default_factory=dict)
    """From the alert to the report on disk, by capture."""
    step_times: dict[int, tuple[float, float]] = field(default_factory=dict)
    """When a step ended and how long it took."""


def watch(plan: Plan, deadline_s: float) -> Seen:
    """Run one job to its end and note what its aggregator tells."""
    plan.folder.mkdir(parents=True)
    seen = Seen(tool=plan.tool)
    with (plan.folder / "log").open("wb") as log:
        job = subprocess.Popen(plan.command, stdout=log, stderr=log)
        reports: dict[str, subprocess.Popen[bytes]] = {}
        while job.poll() is None and time.monotonic() < deadline_s:
            _look(plan, seen)
            for name, capture in seen.captures.items():
                if capture["state"] == "done" and plan.tool in _TRACERS and name not in reports:
                    reports[name] = _analyse(plan, name, log)
                if name in reports and name not in seen.reports_s and reports[name].poll() == 0:
                    seen.reports_s[name] = time.time() - capture["requested_unix_s"]
            time.sleep(_POLL_S)
        if job.poll() is None:
            job.terminate()
        seen.exit_code = job.wait()
        for report in reports.values():
            report.wait()
    return seen


def _look(plan: Plan, seen: Seen) -> None:
    last = max(seen.step_times, default=-1)
    captures = _get(plan.port, "/api/v1/captures").get("captures", ())
    lines = _get(plan.port, f"/api/v1/jobs/captures/steps?from={last + 1}&limit=10000").get("steps", ())
    seen.captures |= {capture["id"]: capture for capture in captures}
    seen.step_times |= {
        line["step"]: (line["time_unix_s"], line["step_time_s"])
        for line in lines
        if line["time_unix_s"] is not None and line["step_time_s"] is not None
    }


def _get(port: int, path: str) -> dict[str, Any]:
    """An answer of the aggregator; empty before it is there and after it has gone."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            document: dict[str, Any] = json.loads(answer.read())
            return document
    except (OSError, ValueError, urllib.error.URLError):
        return {}


def _analyse(plan: Plan, capture_id: str, log: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401  (a file)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "perfd", "capture", "show", capture_id, "--analyze"),
            *("--aggregator", f"127.0.0.1:{plan.port}"),
        ],
        stdout=log,
        stderr=log,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One capture, judged by its files."""

    tool: str
    id: str
    state: str
    ranks: Mapping[str, str]
    right: bool
    spread_s: float | None
    """Between the first and the last rank's begin of the window."""
    lead_s: float | None
    """From the alert to the begin."""
    verified_s: float | None
    """From the alert to the outcome of every rank."""
    report_s: float | None
    cost_s: float | None
    """What its steps took longer, in all."""
    slowest_ratio: float | None
    """Its slowest step against an undisturbed one."""
    reason: str


def judge(seen: Seen, gpus: int, *, dry: bool) -> list[Judged]:
    """Every capture of a job, in order."""
    captures = sorted(seen.captures.values(), key=lambda capture: capture["requested_unix_s"])
    usual_s = _undisturbed_s(captures, seen)
    return [_judge(capture, seen, usual_s, gpus, dry=dry) for capture in captures]


def _judge(capture: Mapping[str, Any], seen: Seen, usual_s: float | None, gpus: int, *, dry: bool) -> Judged:
    asked, ended = capture["requested_unix_s"], capture["ended_unix_s"]
    outcomes = {who["rank"]: who["state"] for who in capture["ranks"]}
    files = sorted({Path(f["path"]) for who in capture["ranks"] for f in who["files"]})
    began = [who["started_unix_s"] for who in capture["ranks"] if who["started_unix_s"] is not None]
    traces = [path for path in files if path.name.endswith(_TRACES) and path.is_file()]
    read = seen.tool in _TRACERS and not dry
    found = _ranks_with_kernels(traces) if read else None
    each = [
        state == "done" if found is None else (state == "done") == (rank in found)
        for rank, state in outcomes.items()
    ]
    right = (sorted(outcomes) == list(range(gpus)) and all(each)) or (
        capture["state"] == "refused" and not outcomes
    )
    windows = [begin for path in traces if (begin := _window_begin(path)) is not None]
    during = [
        took for at, took in seen.step_times.values() if ended is not None and asked <= at <= ended + took
    ]
    known = usual_s is not None and bool(during) and bool(began)
    return Judged(
        tool=seen.tool,
        id=capture["id"],
        state=capture["state"],
        ranks={str(rank): state for rank, state in outcomes.items()},
        right=right,
        spread_s=max(windows) - min(windows) if len(windows) > 1 else None,
        lead_s=min(began) - asked if began else None,
        verified_s=None if ended is None else ended - asked,
        report_s=seen.reports_s.get(capture["id"]),
        cost_s=sum(during) - len(during) * usual_s if known and usual_s else None,
        slowest_ratio=max(during) / usual_s if known and usual_s else None,
        reason=capture["reason"] or "; ".join({who["reason"] for who in capture["ranks"] if who["reason"]}),
    )


def _undisturbed_s(captures: Sequence[Mapping[str, Any]], seen: Seen) -> float | None:
    """The median step that no capture was near."""
    spans = [
        (capture["requested_unix_s"] - QUIET_S, (capture["ended_unix_s"] or time.time()) + QUIET_S)
        for capture in captures
    ]
    quiet = [
        took
        for step, (at, took) in seen.step_times.items()
        if step > 10 and not any(begin <= at <= end for begin, end in spans)
    ]
    return statistics.median(quiet) if quiet else None


def _ranks_with_kernels(traces: Sequence[Path]) -> set[int]:
    try:
        return {
            trace.rank for trace in read_traces(traces) if trace.rank is not None and len(trace.operations)
        }
    except PerfdError as error:
        print(f"the traces cannot be read again: {error}", file=sys.stderr)
        return set()


def _window_begin(path: Path) -> float | None:
    """When Kineto's window began, by its own mark; None for other traces."""
    if not path.name.endswith(".trace.json"):
        return None
    trace = json.loads(path.read_text(encoding="utf-8"))
    base_s = trace.get("baseTimeNanoseconds", 0) / 1e9
    marks = [e["ts"] / 1e6 for e in trace["traceEvents"] if e.get("name") == "PyTorch Profiler (0)"]
    return base_s + marks[0] if marks else None


def report(judged: Sequence[Judged], codes: Sequence[int | None]) -> None:
    """Print each capture, then what holds for each tool."""
    for one in judged:
        print(
            f"{one.tool:6} {one.id:38} {one.state:8} {'right' if one.right else 'WRONG'} ",
            " ".join(f"{rank}:{state}" for rank, state in one.ranks.items()),
            f" alert to begin {_s(one.lead_s)}, to outcome {_s(one.verified_s)},",
            f"to report {_s(one.report_s)}; spread {_ms(one.spread_s)};",
            f"cost {_s(one.cost_s)}, slowest step {_times(one.slowest_ratio)}",
            f" ({one.reason})" if one.reason else "",
        )
    for tool in dict.fromkeys(one.tool for one in judged):
        mine = [one for one in judged if one.tool == tool]
        print(f"{tool}: {sum(one.right for one in mine)} of {len(mine)} right")
        for name in ("lead_s", "verified_s", "report_s", "spread_s", "cost_s", "slowest_ratio"):
            values = sorted(value for one in mine if (value := getattr(one, name)) is not None)
            if values:
                middle = statistics.median(values)
                print(f"  {name:14} median {middle:8.4f}  from {values[0]:8.4f} to {values[-1]:8.4f}")
    print(f"jobs ended with {', '.join(map(str, codes))}")


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.2f} ms"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} x"


def main() -> int:
    """Run the jobs in turn; 0 when every outcome was right and every job ended with 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--captures", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2, help="jobs of each tool")
    parser.add_argument("--tools", default="nsys,kineto")
    parser.add_argument("--torchrun", default="torchrun")
    parser.add_argument("--port", type=int, default=9460)
    parser.add_argument("--limit-s", type=float, default=560.0)
    parser.add_argument("--iteration-roundup", type=int, help="Kineto begins at a multiple of so many steps")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    tools = args.tools.split(",") * args.rounds
    deadline_s = time.monotonic() + args.limit_s
    judged: list[Judged] = []
    codes: list[int | None] = []
    for number, tool in enumerate(tools):
        plan = Plan(
            tool=tool,
            captures=args.captures // len(tools) + (number < args.captures % len(tools)),
            every_steps=(DRY_EVERY_STEPS if args.dry_run else EVERY_STEPS)[tool],
            folder=(args.out / f"{number}-{tool}").absolute(),
            port=args.port,
            dry=args.dry_run,
            gpus=args.gpus,
            torchrun=args.torchrun,
            iteration_roundup=args.iteration_roundup,
        )
        seen = watch(plan, deadline_s)
        codes.append(seen.exit_code)
        judged += judge(seen, args.gpus, dry=args.dry_run)
        # Kept after each job: the next one may take the time that is left.
        (args.out / "captures.json").write_text(json.dumps([asdict(one) for one in judged], indent=1))
    report(judged, codes)
    return 0 if judged and all(one.right for one in judged) and not any(codes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
