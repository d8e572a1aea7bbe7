"""A training job that prints what Megatron-LM prints, and takes a few milliseconds a step.

    python fake_trainer.py STEPS SECONDS_PER_STEP [EXIT_CODE]

It ends on SIGTERM like a trainer that saves a checkpoint first.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import UTC, datetime

SETTINGS = (
    "using world size: 2, data-parallel size: 1, context-parallel size: 1, "
    "tensor-model-parallel size: 1, pipeline-model-parallel size: 2"
)
TIMERS = """\
(min, max) time across ranks (ms):
    forward-backward ...............................: ({busy:.2f}, {busy:.2f})
    optimizer ......................................: ({update:.2f}, {update:.2f})"""


def main(steps: int, step_s: float, code: int = 0) -> None:
    """Print the settings, then an iteration line and its timers for each step."""

    def save_and_leave(*_: object) -> None:
        # The signal may interrupt `say`, and a buffered writer refuses to be used within itself.
        os.write(sys.stdout.fileno(), b"saving checkpoint\n")
        sys.exit(0)

    signal.signal(signal.SIGTERM, save_and_leave)
    say(SETTINGS)
    for step in range(1, steps + 1):
        time.sleep(step_s)
        say(line(step, steps, step_s))
        say(TIMERS.format(busy=900 * step_s, update=80 * step_s))
        sys.stderr.write(f"rank 1: step {step} done\n")
    sys.exit(code)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def line(step: int, steps: int, step_s: float) -> str:
    """One iteration line of Megatron-LM."""
    now = datetime.now(tz=UTC)
    return (
        f" [{now:%Y-%m-%d %H:%M:%S.%f}] iteration {step:8d}/{steps:8d} | consumed samples: {8 * step:12d} |"
        f" elapsed time per iteration (ms): {1000 * step_s:.1f} | throughput per GPU (TFLOP/s/GPU): 123.4 |"
        f" learning rate: 1.000000E-05 | global batch size:     8 | lm loss: {10 / step:.6E} |"
        " loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
