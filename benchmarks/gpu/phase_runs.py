"""Faults of known cost in real jobs on 4 or 2 GPUs, switched on and off within a job.

The jobs are those of `phase_jobs.py`, `quiet_jobs.py`, `fresh_jobs.py`, `novel_jobs.py`, `wide_jobs.py` and
`random_jobs.py`:

    python -m benchmarks.gpu.phase_runs --out FOLDER --megatron FOLDER [--only tp2dp2 ...] [--limit-s 540]
    python -m benchmarks.gpu.phase_runs --out FOLDER --dry-run --torchrun PATH [--only ddp]

Each job runs once under `perfd run --record`. It is healthy for 16 steps, then one fault after the other is
on for some steps, with healthy steps between them (`phases.py`). The truth is what the job itself wrote: the
times of each step and what was added to it (`phase_injector.py`). Meanwhile the session is asked each second
for its findings and alerts.

`FOLDER/NAME` then holds `truth.json` (`phase_truth.py`), `recording/`, `looks.jsonl`, `out/` and `log`, and
what the truth was made of; with `--pack DIR` each job is also packed into `DIR/NAME.tar.gz` as soon as it
ends. `python -m benchmarks.headlines --folder FOLDER` judges recordings again, without a GPU; those in
`recorded_phases` were made in this way. `--dry-run` makes the loops so small that CPUs can run them with
gloo, to try all of this.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.gpu.fault_runs import compress
from benchmarks.gpu.fresh_jobs import FRESH_JOBS
from benchmarks.gpu.novel_jobs import NOVEL_JOBS
from benchmarks.gpu.phase_jobs import JOBS as NOISY_JOBS
from benchmarks.gpu.phase_jobs import MEGATRON_MODEL, TENSOR_PARALLEL, Job
from benchmarks.gpu.phase_truth import write_truth
from benchmarks.gpu.phases import save
from benchmarks.gpu.quiet_jobs import QUIET_JOBS
from benchmarks.gpu.random_jobs import RANDOM_JOBS
from benchmarks.gpu.wide_jobs import WIDE_JOBS

JOBS = {**NOISY_JOBS, **QUIET_JOBS, **FRESH_JOBS, **NOVEL_JOBS, **WIDE_JOBS, **RANDOM_JOBS}
HERE = Path(__file__).resolve().parent
_POLL_S = 1.0
_ENDING_S = 30.0
_MARK = "PERFD_BENCHMARK_JOB"
"""In the environment of every process of a job: its folder."""
_SMALL_LOOP = ("--layers", "2", "--hidden", "64", "--sequence", "16", "--micro-batch", "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What all jobs have in common."""

    out: Path
    megatron: Path | None
    torchrun: str
    python: str
    dry_run: bool
    pack: Path | None


def command_of(name: str, job: Job, folder: Path, options: Options) -> list[str]:
    """The job's own command line, which `perfd run` starts. Writes its plan."""
    plan = job.plan
    save(plan, folder / "plan.json")
    truth = folder / "truth"
    truth.mkdir()
    common = ["--plan", str(folder / "plan.json"), "--truth", str(truth)]
    launcher = [options.torchrun, "--nproc-per-node", str(job.gpus), *job.launcher]
    if job.loop:
        small = _SMALL_LOOP if options.dry_run else ()
        script = [str(HERE / job.script), *common, *job.loop, *small]
        if job.own_launcher:
            return [options.python, *script]
        return [*launcher, *script]
    if options.megatron is None:
        raise ValueError(f"{name} needs --megatron")
    arguments = (*MEGATRON_MODEL, *job.megatron, "--train-iters", str(plan[-1].last_step))
    megatron = [str(HERE / "megatron_job.py"), *common, "--megatron", str(options.megatron), "--"]
    return [*launcher, *megatron, *arguments]


def run_job(name: str, job: Job, options: Options, limit_s: float) -> int:
    """Run one job to its end and return its exit code; 124 when it was ended for taking too long."""
    folder = options.out / name
    folder.mkdir(parents=True)
    port = _free_port()
    command = [
        *(sys.executable, "-P", "-m", "perfd", "run", "--job", name, *(job.perfd or ("--no-nsys",))),
        *("--http", f"127.0.0.1:{port}", "--out", str(folder / "out")),
        *("--record", str(folder / "recording"), "--", *command_of(name, job, folder, options)),
    ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment[_MARK] = str(folder)
    if TENSOR_PARALLEL in job.megatron:
        # Megatron-LM refuses tensor parallelism without it.
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    with (folder / "log").open("wb") as log, (folder / "looks.jsonl").open("w") as looks:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(f"http://127.0.0.1:{port}/api/v1", name, looks, ended))
        watch.start()
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING_S)
            if process.poll() is None:
                process.kill()
                process.wait()
            code = 124
        ended.set()
        watch.join()
    _end_rest(folder)
    try:
        write_truth(folder)
        compress(folder / "recording")
    except (OSError, LookupError) as error:
        print(f"{name}: no truth ({error})", file=sys.stderr, flush=True)
    if options.pack is not None:
        with tarfile.open(options.pack / f"{name}.tar.gz", "w:gz", compresslevel=6) as archive:
            archive.add(folder, arcname=name)
    return code


def _watch(url: str, name: str, looks: object, ended: threading.Event) -> None:
    """Write what the session says, once a second."""
    while not ended.wait(_POLL_S):
        row: dict[str, object] = {"unix_s": time.time()}
        for key, path in (("jobs", f"jobs/{name}"), ("alerts", "alerts")):
            with contextlib.suppress(OSError, ValueError, LookupError):
                with urllib.request.urlopen(f"{url}/{path}", timeout=2) as answer:
                    document = json.load(answer)
                row[key] = document[key][0]["findings"] if key == "jobs" else document[key]
        looks.write(json.dumps(row) + "\n")  # type: ignore[attr-defined]


def _end_rest(folder: Path) -> None:
    """End what a job left behind, which would fill the memory of GPUs or shared memory of the next one."""
    rest = [one for one in psutil.process_iter(["environ"]) if _is_of(one, folder)]
    for one in rest:
        with contextlib.suppress(psutil.Error):
            one.kill()
    _, alive = psutil.wait_procs(rest, timeout=_ENDING_S)
    if rest:
        print(f"{folder.name}: {len(rest)} processes left, {len(alive)} live on", file=sys.stderr, flush=True)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    return (process.info["environ"] or {}).get(_MARK) == str(folder)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs; the exit code is 1 when one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megatron", type=Path, help="a checkout of Megatron-LM")
    parser.add_argument("--only", nargs="+", choices=JOBS, metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--limit-s", type=float, default=3600.0, help="no job starts in the last 60 s of it")
    parser.add_argument("--job-limit-s", type=float, default=150.0)
    parser.add_argument("--pack", type=Path, metavar="DIR")
    parser.add_argument("--torchrun", default="torchrun", help="the program")
    parser.add_argument("--python", default="python3", help="that of the jobs")
    parser.add_argument("--dry-run", action="store_true", help="loops for CPUs")
    args = parser.parse_args(arguments)
    options = Options(
        out=args.out.resolve(),
        megatron=args.megatron and args.megatron.resolve(),
        torchrun=args.torchrun,
        python=args.python,
        dry_run=args.dry_run,
        pack=args.pack,
    )
    began_s = time.monotonic()
    failed = False
    for name in args.only or JOBS:
        left_s = args.limit_s - (time.monotonic() - began_s)
        if left_s < 60:
            print(f"{name}: no time left", file=sys.stderr, flush=True)
            failed = True
            continue
        job_began_s = time.monotonic()
        code = run_job(name, JOBS[name], options, min(args.job_limit_s, left_s))
        failed = failed or code != 0
        print(f"{name}: exit {code} after {time.monotonic() - job_began_s:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
