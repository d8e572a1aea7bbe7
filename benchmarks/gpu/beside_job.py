"""Two loops in one process tree, on the same two GPUs; the second model is smaller, and sharded by FSDP2.

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
_SIZES = (("--layers", "12"), ("--layers", "8", "--hidden", "1024"))


def main() -> None:
    parser = job_arguments(__doc__)
    parser.add_argument("--layouts", nargs=2, default=("ddp", "fsdp2"), help="`--wrap` of each")
    args = parser.parse_args()
    folders = (args.truth, args.truth / "second")
    started = []
    for folder, layout, size in zip(folders, args.layouts, _SIZES, strict=True):
        folder.mkdir(exist_ok=True)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        common = ["--plan", str(args.plan), "--truth", str(folder), "--print-every", "100000"]
        common += ["--accumulate", "1", "--wrap", layout, "--micro-batch", str(args.micro_batch)]
        started.append(subprocess.Popen([*launcher, str(_LOOP), *common, *size]))
    sys.exit(max(abs(process.wait()) for process in started))


if __name__ == "__main__":
    main()
