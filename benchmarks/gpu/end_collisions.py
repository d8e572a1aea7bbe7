"""Captures that collide with the end of a real job, and whether an exit code changes.

    python -m benchmarks.gpu.end_collisions --out FOLDER [--jobs 32] [--at-once 16] [--megatron FOLDER]

Each job runs under `perfd run --kineto`. A capture of all its ranks is asked for, and the job ends at a
random moment from then until some seconds after the capture. DDP loops end when a file appears, which nobody
can know; with `--megatron`, Megatron-LM jobs end by their last step, `--exit-interval` or
`--exit-duration-in-mins`, and the capture is asked for at a random step before. All end with exit code 0 when
nothing disturbs them.

Prints one JSON object: for each kind of job the number of jobs, their exit codes, and how many captures were
in which state when the job was made to end and at last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.phase_jobs import MEGATRON_MODEL

SCHEMA = "perfd.bench.gpu.end_collisions/1"
HERE = Path(__file__).resolve().parent
_WINDOW_S = 4.0
_COLLIDES_FOR_S = 14.0
"""From asking for a capture until some seconds after it is over: lead, window and writing take about 12 s."""
_STARTS_WITHIN_S = 120.0
_ENDS_WITHIN_S = 90.0
_POLL_S = 0.2
_STEPS = 120
MEGATRON_ENDS: Mapping[str, tuple[str, ...]] = {
    "train_iters": ("--train-iters", str(_STEPS)),
    "exit_interval": ("--train-iters", "100000", "--exit-interval", str(_STEPS)),
    "exit_duration": ("--train-iters", "100000", "--exit-duration-in-mins", "1"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One job, its capture and its end."""

    kind: str
    asked: str
    """What perfd answered: the id of a capture, or why there is none."""
    asked_step: int | None
    at_end: str
    """The state of the capture when the job was made to end, or ended."""
    last: str
    reason: str
    code: int | None
    """Of `perfd run`; None when the job had to be killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What all jobs have in common."""

    out: Path
    gpus: int
    torchrun: str
    megatron: Path | None


class Session:
    """One job under `perfd run --kineto`, and its address."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self._name, self._url = name, f"http://127.0.0.1:{port}/api/v1"
        # Several agents on one node: libkineto asks each at a socket of its own.
        sockets = Path(tempfile.mkdtemp(prefix="perfd-end-"))
        config = folder / "perfd.yaml"
        config.write_text(f"agent: {{capture: {{kineto: {{socket_directory: {sockets}}}}}}}\n")
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "perfd", "run", "--kineto", "--job", name),
                    *("--config", str(config)),
                    *("--http", f"127.0.0.1:{port}", "--out", str(folder / "out"), "--", *command),
                ],
                stdout=log,
                stderr=log,
                env={
                    **{key: value for key, value in environment.items() if key != "PYTHONPATH"},
                    "KINETO_IPC_SOCKET_DIR": str(sockets),
                },
                cwd=folder,
            )

    def wait_for(self, pattern: str, limit_s: float) -> bool:
        """Whether a line of the log matched in time, and the job still runs."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s and self.process.poll() is None:
            if re.search(pattern, self.log.read_text(errors="replace")):
                return True
            time.sleep(_POLL_S)
        return False

    def capture(self) -> str:
        """Ask for a capture; its id, or why there is none."""
        body = json.dumps({"job": self._name, "max_duration_s": _WINDOW_S}).encode()
        request = urllib.request.Request(
            f"{self._url}/captures", data=body, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return str(json.load(answer)["capture"]["id"])
        except urllib.error.HTTPError as error:
            return f"refused: {error.read().decode(errors='replace')[:300]}"
        except (OSError, ValueError, LookupError) as error:
            return f"no answer: {error!r}"

    def state(self, capture: str) -> tuple[str, str]:
        """State and reason of a capture; that of its rank 0 while it is open."""
        with contextlib.suppress(OSError, ValueError, LookupError):
            with urllib.request.urlopen(f"{self._url}/captures/{capture}", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)["capture"]
            ranks = [one["state"] for one in found["ranks"]]
            state = found["state"]
            return (f"{state}: {ranks[0]}" if ranks and state == "open" else state), str(found["reason"])
        return "unknown", ""

    def end(self) -> int | None:
        """The exit code; None when it did not end and was killed."""
        try:
            return self.process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def collide(kind: str, number: int, options: Options) -> Outcome:
    """Run one job to its end, with a capture near it."""
    chance = random.Random(number)
    name = f"{kind}-{number:02}"
    folder = options.out / name
    folder.mkdir(parents=True)
    environment = dict(os.environ)
    ranks = str(2 if kind == "ddp" else options.gpus)
    # Several jobs on one node: each has a port of its own.
    launcher = [options.torchrun, "--standalone", "--nproc-per-node", ranks]
    end_file = folder / "end"
    if kind == "ddp":
        if "CUDA_VISIBLE_DEVICES" not in environment and options.gpus > 2:
            first = 2 * (number % (options.gpus // 2))
            environment["CUDA_VISIBLE_DEVICES"] = f"{first},{first + 1}"
        command = [*launcher, str(HERE / "end_job.py"), "--end-file", str(end_file)]
        starts = "step 5"
    else:
        if options.megatron is None:
            raise ValueError(f"{kind} needs --megatron")
        script = str(options.megatron / "pretrain_gpt.py")
        model = (*MEGATRON_MODEL, "--num-layers", "4", "--global-batch-size", str(4 * options.gpus))
        command = [*launcher, script, *model, *MEGATRON_ENDS[kind]]
        step = chance.randrange(20, _STEPS - 1) if kind != "exit_duration" else chance.randrange(5, 60)
        starts = rf"iteration +{step}/"
    session = Session(name, command, folder, environment)
    if not session.wait_for(starts, _STARTS_WITHIN_S):
        return Outcome(
            kind=kind,
            asked="never started",
            asked_step=None,
            at_end="",
            last="",
            reason="",
            code=session.end(),
        )
    time.sleep(chance.random() if kind == "ddp" else 0.0)
    asked = session.capture()
    state, reason = session.state(asked)
    if kind == "ddp":
        time.sleep(chance.random() * _COLLIDES_FOR_S)
        state, reason = session.state(asked)
        end_file.touch()
    at_end, steps = state, re.findall(r"iteration +(\d+)/", session.log.read_text(errors="replace"))
    deadline_s = time.monotonic() + _ENDS_WITHIN_S
    while session.process.poll() is None and time.monotonic() < deadline_s:
        now, why = session.state(asked)
        if now != "unknown":
            state, reason = now, why
        time.sleep(_POLL_S)
    return Outcome(
        kind=kind,
        asked=asked,
        asked_step=int(steps[-1]) if steps else None,
        at_end=at_end,
        last=state,
        reason=reason,
        code=session.end(),
    )


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What is printed."""
    kinds = {}
    for kind in dict.fromkeys(one.kind for one in outcomes):
        mine = [one for one in outcomes if one.kind == kind]
        kinds[kind] = {
            "jobs": len(mine),
            "exit_codes": dict(Counter(str(one.code) for one in mine)),
            "capture_at_end": dict(Counter(one.at_end for one in mine)),
            "capture_at_last": dict(Counter(one.last for one in mine)),
        }
    return {"schema": SCHEMA, "kinds": kinds, "outcomes": [asdict(one) for one in outcomes]}


def main() -> int:
    """Run all jobs; the exit code is 1 when one of them changed its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=32, help="DDP jobs")
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--megatron", type=Path, help="a checkout of Megatron-LM, for jobs of a known end")
    parser.add_argument("--megatron-jobs", type=int, default=1, help="of each kind of end")
    parser.add_argument("--torchrun", default="torchrun", help="the program")
    args = parser.parse_args()
    options = Options(
        out=args.out.resolve(),
        gpus=args.gpus,
        torchrun=args.torchrun,
        megatron=args.megatron and args.megatron.resolve(),
    )
    kinds = [kind for kind in MEGATRON_ENDS for _ in range(args.megatron_jobs)] if args.megatron else []
    kinds += ["ddp"] * args.jobs
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(args.at_once) as pool:
        futures = [pool.submit(collide, kind, number, options) for number, kind in enumerate(kinds)]
        for future in as_completed(futures):
            outcomes.append(future.result())
            (options.out / "outcomes.json").write_text(json.dumps(document(outcomes), indent=1))
    found = document(outcomes)
    print(json.dumps({**found, "outcomes": len(outcomes)}, indent=1))
    return int(any(one.code != 0 for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
