"""A real SLURM for tests, and what it says of its jobs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
USER = "nobody"
"""A user who is not root, on every Debian."""


def until(holds: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    """Come back as soon as something holds that other processes bring about."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """SLURM in a directory of its own. Jobs find perfd at `perfd`, and the repository at `repository`."""

    directory: Path

    @property
    def perfd(self) -> Path:
        return self.directory / "etc" / "perfd"

    @property
    def repository(self) -> Path:
        return self.directory / "repository"

    @property
    def sidecar(self) -> Path:
        return self.repository / "deploy" / "slurm" / "perfd-sidecar"

    @property
    def trainer(self) -> Path:
        return self.repository / "tests" / "deploy" / "slurm" / "trainer.sh"

    def __call__(self, *command: str, cwd: Path | None = None, user: str = "root", **environ: str) -> str:
        # Python itself would change the user by fork, which gRPC's threads in this process do not survive.
        become = [] if user == "root" else ["setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups"]
        found = subprocess.run(
            [*become, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=cwd,
            env=self.environment(environ),
        )
        assert found.returncode == 0, f"{command}: {found.stdout}{found.stderr}"
        return found.stdout

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **more, "SLURM_CONF": str(self.directory / "etc" / "slurm.conf")}

    def folder(self, name: str, user: str = "root") -> Path:
        """A new folder for a job of a user."""
        path = self.directory / name
        path.mkdir()
        shutil.chown(path, user)
        return path

    def submit(self, folder: Path, options: str, *lines: str, user: str = "root", **environ: str) -> str:
        """The id of a job of these lines, which runs in a folder of its user."""
        script = folder / "job.sh"
        script.write_text("\n".join(("#!/bin/bash", f"#SBATCH {options}", *lines, "")))
        given = {"PERFD": str(self.perfd), "PERFD_SPOOL": str(self.directory / "spools"), **environ}
        printed = self("sbatch", "--parsable", "--output=%j.out", str(script), cwd=folder, user=user, **given)
        return printed.strip()

    def state(self, job: str) -> str:
        """What SLURM calls the state of a job, as in RUNNING; it remembers a job for five minutes."""
        return self("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T").strip()

    def ended(self, job: str) -> bool:
        """Whether a job is over in all its tasks, their Epilogs too."""
        over = {
            "COMPLETED",
            "CANCELLED",
            "FAILED",
            "NODE_FAIL",
            "OUT_OF_MEMORY",
            "PREEMPTED",
            "TIMEOUT",
        }
        return set(self.state(job).split()) <= over

    def lose(self, node: str) -> None:
        """End a node as a power failure would, all its processes at once, and tell SLURM."""
        pid_file = self.directory / f"slurmd-{node}.pid"
        for pid in _sharing_a_host_name(int(pid_file.read_text())):
            # One may end because another did.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pid_file.unlink()
        self("scontrol", "update", f"nodename={node}", "state=down", "reason=test")


def up(directory: Path, nodes: int, gpus: int) -> Cluster:
    cluster = Cluster(directory=directory)
    _install(cluster)
    # No pipes: the daemons would keep them open.
    with (directory / "up.log").open("w") as log:
        found = subprocess.run(
            [HERE / "up.sh", directory, str(nodes), str(gpus)],
            stdout=log,
            stderr=log,
            check=False,
            timeout=90,
        )
    assert found.returncode == 0, (directory / "up.log").read_text()
    return cluster


def down(cluster: Cluster) -> None:
    with (cluster.directory / "down.log").open("w") as log:
        subprocess.run([HERE / "down.sh", cluster.directory], stdout=log, stderr=log, check=True, timeout=90)


def _install(cluster: Cluster) -> None:
    """Make this Python and this repository reachable to every user, wherever they are."""
    python, site, scripts = (cluster.directory / name for name in ("python", "site", "scripts"))
    places = {
        sys.base_prefix: python,
        sysconfig.get_path("purelib"): site,
        sysconfig.get_path("scripts"): scripts,
        REPOSITORY: cluster.repository,
    }
    for path in (*places.values(), cluster.directory / "spools"):
        path.mkdir()
    (cluster.directory / "spools").chmod(0o1777)
    etc = cluster.directory / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "mounts").write_text("".join(f"{place} {path}\n" for place, path in places.items()))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    cluster.perfd.write_text(
        "#!/bin/sh\n"
        # py-spy is there.
        f"export PATH=$PATH:{scripts} LD_LIBRARY_PATH={python}/lib\n"
        f"export PYTHONPATH={cluster.repository}:{cluster.repository}/collectors:{site}\n"
        f'exec {python}/bin/{version} -P -m perfd "$@"\n'
    )
    cluster.perfd.chmod(0o755)


def processes_that_name(text: str) -> list[str]:
    """Command lines in which a text occurs."""
    return [
        line
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if text in (line := _read(path).replace(b"\0", b" ").decode(errors="replace"))
    ]


def _sharing_a_host_name(daemon: int) -> list[int]:
    """The processes of a node, a daemon's own among them: each node has a name of its own."""
    mine = Path(f"/proc/{daemon}/ns/uts").readlink()
    return [
        int(path.parent.parent.name) for path in Path("/proc").glob("[0-9]*/ns/uts") if _link(path) == mine
    ]


def _link(path: Path) -> Path | None:
    try:
        return path.readlink()
    except OSError:
        return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
