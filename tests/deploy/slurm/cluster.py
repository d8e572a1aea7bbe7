"""A real SLURM for tests, and what it says of its jobs."""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


def until(holds: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    """Come back as soon as something holds that other processes bring about."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """SLURM in a directory of its own."""

    directory: Path

    def __call__(self, *command: str, cwd: Path | None = None, **environ: str) -> str:
        found = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            cwd=cwd,
            env={**os.environ, **environ, "SLURM_CONF": str(self.directory / "etc" / "slurm.conf")},
        )
        assert found.returncode == 0, f"{command}: {found.stdout}{found.stderr}"
        return found.stdout

    def submit(self, script: Path, **environ: str) -> str:
        """The id of a job that runs in the script's directory."""
        return self(
            "sbatch", "--parsable", "--output=%j.out", str(script), cwd=script.parent, **environ
        ).strip()

    def ended(self, job: str) -> bool:
        """Whether a job is over, its Epilogs too."""
        return self.state(job) in {"COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT"}

    def state(self, job: str) -> str:
        """What SLURM calls the state of a job, as in RUNNING; it remembers a job for five minutes."""
        return self("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T").strip()


def up(directory: Path, nodes: int, gpus: int) -> Cluster:
    # No pipes: the daemons would keep them open.
    with (directory / "up.log").open("w") as log:
        found = subprocess.run(
            [HERE / "up.sh", directory, str(nodes), str(gpus)],
            stdout=log,
            stderr=log,
            check=False,
            timeout=60,
        )
    assert found.returncode == 0, (directory / "up.log").read_text()
    return Cluster(directory=directory)


def down(cluster: Cluster) -> None:
    with (cluster.directory / "down.log").open("w") as log:
        subprocess.run([HERE / "down.sh", cluster.directory], stdout=log, stderr=log, check=True, timeout=60)


def processes_that_name(text: str) -> list[str]:
    """Command lines in which a text occurs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found
