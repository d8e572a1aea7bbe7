"""Two trainings side by side that know nothing of each other, each on its own GPU, as a search over settings.

    python benchmarks/gpu/sweep_job.py --plan plan.json --truth FOLDER

FOLDER has what `phase_injector.py` writes for the first, and a folder `second` with that of the other, whose
model is larger.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from phases import job_arguments

_LOOP = Path(__file__).with_name("loop_job.py")
_LAYERS_RATIO = 2
"""How many times the layers of the first model the second one has."""


def main() -> None:
    args = job_arguments(__doc__).parse_args()
    started = []
    sizes = {"--hidden": args.hidden, "--sequence": args.sequence, "--micro-batch": args.micro_batch}
    for gpu, folder in enumerate((args.truth, args.truth / "second")):
        folder.mkdir(exist_ok=True)
        layers = args.layers * _LAYERS_RATIO if gpu else args.layers
        command = [sys.executable, str(_LOOP), "--plan", str(args.plan), "--truth", str(folder)]
        command += ["--wrap", "none", "--accumulate", "1", "--layers", str(layers)]
        command += [str(one) for option in sizes.items() for one in option]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
        started.append(subprocess.Popen(command, env=environment))
    sys.exit(max(abs(process.wait()) for process in started))


if __name__ == "__main__":
    main()
