"""What a line of a training log costs the agent, by kind of log.

    python -m benchmarks.log_lines [--lines 20000] [--rounds 5]

Each log is generated, and read by a new `LogParser` in blocks of 64 KiB; the best of some rounds counts, in
processor time. Printed is microseconds a line, and the steps found. The exit code is 1 if a line of a log
that says no step takes longer than `LIMIT_US`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence

from perfd_collectors.training_log.log_parser import LogParser, new_job

LIMIT_US = 30.0
"""Chosen: a megabyte a second of lines of 100 characters then takes less than a third of a core."""
_BLOCK_BYTES = 1 << 16
"""That are read at a time, as of a pipe."""


def _chatty(number: int) -> str:
    """A line without a step that has the words of step lines."""
    at, rank, kind = f"2026-11-27 07:{number // 60 % 60:02d}:{number % 60:02d},123", number % 8, number % 12
    return (
        f"{at} DEBUG data.loader: worker {rank} prefetched batch {number} for epoch {number // 1000}",
        f"{at} INFO scheduler: the step queue has {number % 97} entries, next iteration is prepared",
        f"[rank{rank}]: {at} DEBUG engine: gradients of iteration bucket {number % 31} are ready",
        f"{at} DEBUG urllib3.connectionpool: GET /api/runs/step_{number}/upload?epoch=3 HTTP/1.1 200",
        f"{at} WARNING tokenizer: sequence {number} is truncated to 4096 tokens in a training batch",
        f"{at} DEBUG cache: loss of entry {number:08x}, evicted by policy lru (updates: 12 of 64)",
        f"({at}) [Trainer] Step callback on_before_zero_grad took no time on rank {rank}",
        f"{at} INFO storage: saving the checkpoint shard iter_{number:07d}/mp_rank_{rank:02d}",
        f"{at} DEBUG profiler: Training loop hook {number % 5} of {rank} registered, memory (host) unknown",
        f"{at} DEBUG optimizer: group {rank} [lr scheduler step] skipped, done. next update in a while",
        f"{at} INFO comm: Iterator over buckets is rebuilt, iter=unknown, batch size 32, datetime: none",
        f"{at} DEBUG trace: epochs and steps are counted on rank {rank} | loss | not yet known {number}",
    )[kind]


def _json(number: int) -> str:
    return (
        f'{{"time": "2026-11-27T07:00:00Z", "level": "debug", "logger": "data", "event": "prefetch", '
        f'"worker": {number % 8}, "batch": {number}, "shard": "train-{number % 512:05d}.tar"}}'
    )


def _plain(number: int) -> str:
    return f"2026-11-27 07:00:00,123 DEBUG http: connection {number} to 10.0.0.{number % 256} is kept alive"


def _step_line(number: int) -> str:
    return f"step {number}: train loss {9 - number / 1e5:.4f}, lr 3.0e-04, 181.2 ms, 720,123 tok/s"


def _epoch_line(number: int) -> str:
    return f"Epoch [{number // 1000 + 1}/50], Step [{number % 1000 + 1}/1000], Loss: {9 - number / 1e5:.4f}"


def _megatron(number: int) -> str:
    return (
        f" [2026-11-27 07:00:00.123456] iteration {number:8d}/  500000 | consumed samples: {8 * number:12d} |"
        " elapsed time per iteration (ms): 181.2 | throughput per GPU (TFLOP/s/GPU): 123.4 | learning rate:"
        " 1.000000E-05 | global batch size:     8 | lm loss: 2.345678E+00 | loss scale: 1.0 |"
        " grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _trainer(number: int) -> str:
    return (
        f"{{'loss': {9 - number / 1e5:.4f}, 'grad_norm': 1.5, 'learning_rate': 5e-05, "
        f"'epoch': {number / 1e3:.3f}}}"
    )


def _bar(number: int) -> str:
    share = number % 1000 / 1000
    return (
        f"\r{int(100 * share):3d}%|{'█' * int(10 * share):10s}| {number % 1000}/1000 [01:23<04:56, 5.52it/s, "
        "loss=2.31]"
    )


SILENT: Mapping[str, Callable[[int], str]] = {
    "no keyword": _plain,
    "keywords, no step": _chatty,
    "JSON, no step": _json,
}
"""Logs that say no step."""
OF_STEPS: Mapping[str, Callable[[int], str]] = {
    "loop": _step_line,
    "epochs and batches": _epoch_line,
    "Megatron-LM": _megatron,
    "Trainer": _trainer,
    "tqdm": _bar,
}


def cost_us(line: Callable[[int], str], lines: int, rounds: int) -> tuple[float, int]:
    """Processor time per line, in microseconds, the best of some rounds; and how many steps were found."""
    data = "\n".join(line(number) for number in range(1, lines + 1)).encode() + b"\n"
    best_s, steps = float("inf"), 0
    for _ in range(rounds):
        job = new_job("job")
        parser = LogParser(job)
        began_s = time.process_time()
        for start in range(0, len(data), _BLOCK_BYTES):
            parser.feed(data[start : start + _BLOCK_BYTES])
            job.out.take(0)
        parser.finish()
        best_s = min(best_s, time.process_time() - began_s)
        steps = job.steps.counted
    return best_s / lines * 1e6, steps


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    within = True
    for name, line in {**SILENT, **OF_STEPS}.items():
        us, steps = cost_us(line, args.lines, args.rounds)
        print(f"{name:20s} {us:6.1f} us a line, {steps} steps", flush=True)
        within &= name in OF_STEPS or us <= LIMIT_US
    return 0 if within else 1


if __name__ == "__main__":
    raise SystemExit(main())
