"""Faults of known cost in real jobs on 4 or 2 GPUs, switched on and off within a job.

The jobs are Megatron-LM, plain loops with FSDP2 and DDP, loops whose steps differ (`varied_job.py`),
transformers, and Lightning:

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.fault_runs import compress
from benchmarks.gpu.phase_truth import write_truth
from benchmarks.gpu.phases import Fault, Phase, phases, save, slow_data

HERE = Path(__file__).resolve().parent
_POLL_S = 1.0
_ENDING_S = 30.0
_SLOW_STEPS, _STEPS_AFTER = 50, 26
MEGATRON_MODEL = (
    "--hidden-size", "2048", "--num-attention-heads", "16", "--seq-length", "2048",
    "--max-position-embeddings", "2048", "--micro-batch-size", "2", "--lr", "1e-4", "--min-lr", "1e-5",
    "--lr-decay-style", "cosine", "--split", "100,0,0", "--eval-iters", "0", "--eval-interval", "100000",
    "--bf16", "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "32000",
    "--transformer-impl", "local", "--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion",
    "--no-persist-layer-norm", "--log-interval", "1", "--log-throughput",
)  # fmt: skip
_EXPERTS = (
    "--num-experts", "8", "--expert-model-parallel-size", "4", "--moe-router-topk", "2",
    "--moe-token-dispatcher-type", "alltoall", "--moe-aux-loss-coeff", "0.01", "--swiglu",
    "--disable-bias-linear",
)  # fmt: skip
_SMALL_LOOP = ("--layers", "2", "--hidden", "64", "--sequence", "16", "--micro-batch", "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: what it trains, and what goes wrong in it."""

    faults: tuple[Fault, ...] = ()
    megatron: tuple[str, ...] = ()
    """Arguments of pretrain_gpt.py; empty for a plain loop."""
    loop: tuple[str, ...] = ()
    """Arguments of `script`."""
    script: str = "loop_job.py"
    own_launcher: bool = False
    """The script starts its other ranks, in place of torchrun."""
    gpus: int = 4
    healthy_steps: int = 16
    """Before the first fault."""
    launcher: tuple[str, ...] = ()
    """More arguments of torchrun."""
    slow_data: tuple[str, float] | None = None
    """In place of faults: `storage` or `decoding`, and its seconds of each sample from the first step on."""

    @property
    def plan(self) -> list[Phase]:
        """Its phases."""
        if self.slow_data is None:
            return phases(self.faults, warmup_steps=self.healthy_steps)
        return slow_data(*self.slow_data, steps=_SLOW_STEPS, healthy_steps=_STEPS_AFTER)


def _megatron(layers: int, batch: int, *layout: str) -> tuple[str, ...]:
    return ("--num-layers", str(layers), "--global-batch-size", str(batch), *layout)


def _varied(
    kind: str, *faults: Fault, more: tuple[str, ...] = (), launcher: tuple[str, ...] = (), steps: int = 90
) -> Job:
    return Job(
        gpus=2,
        script="varied_job.py",
        loop=("--kind", kind, "--micro-batch", "8", "--accumulate", "1", *more),
        launcher=launcher,
        healthy_steps=steps,
        faults=faults,
    )


_TP2, _PP2 = ("--tensor-model-parallel-size", "2"), ("--pipeline-model-parallel-size", "2")
_STALL_STEPS = 20
JOBS: Mapping[str, Job] = {
    # Tensor parallel jobs of this size are launch-bound: GPUs have time to spare, small work costs nothing.
    "tp2dp2": Job(
        megatron=_megatron(12, 16, *_TP2),
        faults=(
            Fault(kind="gpu", size=0.15, ranks=(3,)),
            Fault(kind="host", size=0.2, ranks=(1,)),
            Fault(kind="gpu", size=0.8, ranks=(2,)),
            Fault(kind="stall", size=0.6, ranks=(0,), steps=_STALL_STEPS),
            Fault(kind="loader", size=0.3),
        ),
    ),
    "ep4": Job(
        megatron=_megatron(8, 16, *_EXPERTS),
        faults=(
            Fault(kind="gpu", size=0.4, ranks=(2,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="host", size=0.25, ranks=(1,)),
            Fault(kind="stall", size=0.6, ranks=(3,), steps=_STALL_STEPS),
        ),
    ),
    "tp2pp2": Job(
        megatron=_megatron(12, 16, *_TP2, *_PP2),
        faults=(
            Fault(kind="gpu", size=0.12, ranks=(3,)),
            Fault(kind="gpu", size=0.8, ranks=(1,)),
            Fault(kind="stall", size=0.6, ranks=(2,), steps=_STALL_STEPS),
            Fault(kind="host", size=0.2, ranks=(2,)),
            Fault(kind="loader", size=0.3),
        ),
    ),
    "dp4": Job(
        megatron=_megatron(12, 32),
        faults=(
            Fault(kind="gpu", size=0.2, ranks=(1,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="gpu", size=0.08, ranks=(2,)),
            Fault(kind="host", size=0.25, ranks=(3,)),
            Fault(kind="stall", size=0.6, ranks=(2,), steps=_STALL_STEPS),
        ),
    ),
    "fsdp2": Job(
        loop=("--wrap", "fsdp2"),
        faults=(
            Fault(kind="host", size=0.3, ranks=(1,)),
            Fault(kind="gpu", size=0.25, ranks=(2,)),
            Fault(kind="stall", size=0.6, ranks=(3,), steps=_STALL_STEPS),
            Fault(kind="loader", size=1.2),
            Fault(kind="host", size=1.1, ranks=(0,)),
        ),
    ),
    "ddp": Job(
        loop=("--wrap", "ddp", "--print-every", "10"),
        faults=(
            Fault(kind="gpu", size=0.25, ranks=(3,)),
            Fault(kind="host", size=0.3, ranks=(2,)),
            Fault(kind="loader", size=1.2),
            Fault(kind="host", size=1.1, ranks=(1,)),
            Fault(kind="stall", size=0.6, ranks=(0,), steps=_STALL_STEPS),
        ),
    ),
    "pp2dp2": Job(
        megatron=_megatron(12, 24, *_PP2),
        faults=(
            Fault(kind="host", size=0.25, ranks=(0,)),
            Fault(kind="gpu", size=0.3, ranks=(3,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="stall", size=0.6, ranks=(1,), steps=_STALL_STEPS),
        ),
    ),
    "pp4": Job(
        megatron=_megatron(12, 16, "--pipeline-model-parallel-size", "4"),
        faults=(
            Fault(kind="gpu", size=0.3, ranks=(2,)),
            Fault(kind="stall", size=0.6, ranks=(3,), steps=_STALL_STEPS),
            Fault(kind="host", size=0.25, ranks=(1,)),
            Fault(kind="loader", size=0.3),
        ),
    ),
    "dp2": Job(
        gpus=2,
        megatron=_megatron(12, 32),
        faults=(
            Fault(kind="loader", size=0.4),
            Fault(kind="gpu", size=0.15, ranks=(1,)),
            Fault(kind="host", size=0.3, ranks=(0,)),
            Fault(kind="stall", size=0.6, ranks=(1,), steps=_STALL_STEPS),
        ),
    ),
    "tp2": Job(
        gpus=2,
        megatron=_megatron(12, 8, *_TP2),
        faults=(
            Fault(kind="gpu", size=0.5, ranks=(1,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="host", size=0.3, ranks=(0,)),
        ),
    ),
    "pp2": Job(
        gpus=2,
        megatron=_megatron(12, 16, *_PP2),
        faults=(
            Fault(kind="gpu", size=0.25, ranks=(0,)),
            Fault(kind="loader", size=0.3),
            Fault(kind="host", size=0.4, ranks=(1,)),
        ),
    ),
    "ddp2": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "1", "--micro-batch", "8", "--print-every", "10"),
        faults=(
            Fault(kind="loader", size=1.4),
            Fault(kind="gpu", size=0.15, ranks=(1,)),
            Fault(kind="host", size=1.3, ranks=(0,)),
            Fault(kind="stall", size=0.6, ranks=(0,), steps=_STALL_STEPS),
        ),
    ),
    "fsdp2x2": Job(
        gpus=2,
        loop=("--wrap", "fsdp2", "--accumulate", "1", "--micro-batch", "8"),
        faults=(
            Fault(kind="gpu", size=0.25, ranks=(0,)),
            Fault(kind="loader", size=1.4),
            Fault(kind="gpu", size=0.12, ranks=(1,)),
            Fault(kind="host", size=1.3, ranks=(1,)),
        ),
    ),
    "trainer2": Job(
        gpus=2,
        script="trainer_job.py",
        loop=("--micro-batch", "4"),
        faults=(
            Fault(kind="gpu", size=0.25, ranks=(1,)),
            Fault(kind="loader", size=0.5),
            Fault(kind="host", size=0.5, ranks=(0,)),
            Fault(kind="stall", size=0.6, ranks=(1,), steps=_STALL_STEPS),
        ),
    ),
    "lightning2": Job(
        gpus=2,
        script="lightning_job.py",
        own_launcher=True,
        loop=("--micro-batch", "4"),
        faults=(
            Fault(kind="loader", size=0.5),
            Fault(kind="gpu", size=0.25, ranks=(0,)),
            Fault(kind="host", size=0.5, ranks=(1,)),
        ),
    ),
    # Steps that differ, or unusual collectives: healthy for long, then one fault.
    "evaluation2": _varied("evaluation", Fault(kind="host", size=0.4, ranks=(1,))),
    "checkpoint2": _varied("checkpoint", Fault(kind="gpu", size=0.3, ranks=(1,))),
    "lengths2": _varied("lengths", Fault(kind="host", size=1.0, ranks=(1,), steps=20)),
    "growing2": _varied("growing", Fault(kind="gpu", size=0.5, ranks=(0,))),
    "offload2": _varied("offload", Fault(kind="host", size=0.4, ranks=(0,)), more=("--layers", "8")),
    "tensor2": _varied("tensor", Fault(kind="host", size=0.4, ranks=(1,))),
    "pipeline2": _varied("pipeline", Fault(kind="gpu", size=0.3, ranks=(1,)), more=("--layers", "20")),
    "graphs2": _varied("graphs", Fault(kind="host", size=0.5, ranks=(1,))),
    "crash2": _varied("crash", launcher=("--max-restarts", "1")),
    # Two workers load each batch, so that a sample's time counts half.
    "ddp2storage": Job(
        gpus=2,
        loop=("--wrap", "ddp", "--accumulate", "1", "--micro-batch", "8", "--print-every", "10"),
        slow_data=("storage", 0.08),
    ),
    "fsdp2x2decoding": Job(gpus=2, loop=("--wrap", "fsdp2"), slow_data=("decoding", 0.08)),
}  # fmt: skip


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
            return [options.python, *script, "--devices", str(job.gpus)]
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
        *(sys.executable, "-P", "-m", "perfd", "run", "--no-nsys", "--job", name),
        *("--http", f"127.0.0.1:{port}", "--out", str(folder / "out")),
        *("--record", str(folder / "recording"), "--", *command_of(name, job, folder, options)),
    ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if _TP2[0] in job.megatron:
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
