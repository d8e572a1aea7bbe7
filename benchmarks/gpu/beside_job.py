"""Two jobs in one process tree, on the same two GPUs: a DDP loop, and a smaller one with FSDP2.

    python benchmarks/gpu/beside_job.py --plan plan.json --truth FOLDER

Each has a torchrun of its own. FOLDER has what `phase_injector.py` writes for the first, and a folder
`second` with that of the other.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from phases import job_arguments

_LOOP = Path(__file__).with_name("loop_job.py")
_JOBS = (
    ("--wrap", "ddp", "--layers", "12"),
    ("--wrap", "fsdp2", "--layers", "8", "--hidden", "1024"),
)


def main() -> None:
    args = job_arguments(__doc__).parse_args()
    folders = (args.truth, args.truth / "second")
    started = []
    for folder, arguments in zip(folders, _JOBS, strict=True):
        folder.mkdir(exist_ok=True)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        common = ["--plan", str(args.plan), "--truth", str(folder), "--print-every", "100000"]
        started.append(subprocess.Popen([*launcher, str(_LOOP), *common, "--accumulate", "1", *arguments]))
    sys.exit(max(abs(process.wait()) for process in started))


if __name__ == "__main__":
    main()
