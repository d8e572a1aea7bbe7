"""Stacks of Python processes with py-spy, for jobs that hang."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perfd.capture.node import (
    Begun,
    CaptureOutcome,
    CapturePlan,
    CaptureTarget,
    ProcessTool,
    Readiness,
    placed_targets,
    started_pythons,
)
from perfd.errors import CaptureError
from perfd.model import CaptureState, CaptureTool, RankPlacement

_TIMEOUT_S = 30.0
"""For one process, which py-spy pauses for each dump and may have to wait for."""


def find_py_spy(configured: str | None, search_path: str | None) -> Path | None:
    """The configured py-spy, else that on `search_path`, else the one installed beside perfd; None without.

    A configured one that does not exist counts as none: another one would hide the mistake.
    """
    if configured is not None:
        return Path(configured) if Path(configured).is_file() else None
    places = [search_path, str(Path(sys.executable).parent)]
    found = next((where for path in places if path and (where := shutil.which("py-spy", path=path))), None)
    return Path(found) if found else None


class PySpyTool(ProcessTool):
    """A `perfd.capture.node.capture_tool.Tool` that dumps the stacks of each rank's threads once."""

    kind = CaptureTool.PY_SPY
    for_hangs = True

    def __init__(
        self,
        py_spy: Path | None,
        *,
        placements: Callable[[str], Sequence[RankPlacement]],
        proc: Path = Path("/proc"),
        nonblocking: bool = True,
        run: str | None = None,
    ) -> None:
        """With `run`, processes of that `perfd run` are dumped even if none is known to be a rank."""
        self._py_spy = py_spy
        self._placements = placements
        self._proc = proc
        self._nonblocking = nonblocking
        self._run_id = run

    def available(self) -> bool:
        return self._py_spy is not None

    def ready(self, job: str, ranks: Sequence[int]) -> Readiness:
        if self._py_spy is None:
            return Readiness(reason="py-spy not found: install it (pip install py-spy).")
        placed = placed_targets(self._placements(job), ranks, self._proc)
        if ranks or placed.targets or self._run_id is None:
            return placed
        started = started_pythons(self._proc, self._run_id)
        if not started:
            return Readiness(reason="No Python process of this job runs on this node.")
        return Readiness(
            targets=[CaptureTarget(handle=f"pid:{pid}", processes={pid: None}) for pid in started]
        )

    def start(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Begun:  # noqa: ARG002  (all is done in `stop`)
        return Begun(length_s=0.0)

    def stop(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Sequence[CaptureOutcome]:
        # At the same time: in a hang, the stacks show which rank waits for which.
        with ThreadPoolExecutor(max_workers=max(1, len(targets))) as pool:
            return list(pool.map(lambda target: self._dump(target, plan), targets))

    def abort(self, handles: Sequence[str]) -> None:
        """Nothing: a dump ends by itself."""

    def _dump(self, target: CaptureTarget, plan: CapturePlan) -> CaptureOutcome:
        ((pid, rank),) = target.processes.items()
        path = plan.directory / f"{'process' if rank is None else f'rank{rank}'}_{pid}.stacks.json"
        options = ["--nonblocking"] if self._nonblocking else []
        try:
            output = self._run(["dump", "--pid", str(pid), "--json", *options])
        except CaptureError as error:
            return CaptureOutcome(state=CaptureState.FAILED, ranks=target.ranks, reason=str(error))
        path.write_bytes(output)
        return CaptureOutcome(state=CaptureState.DONE, ranks=target.ranks, files=[path])

    def _run(self, arguments: Sequence[str]) -> bytes:
        try:
            done = subprocess.run(
                [str(self._py_spy), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise CaptureError(f"py-spy did not end within {_TIMEOUT_S:.0f} s.") from error
        except OSError as error:
            raise CaptureError(f"Cannot run {self._py_spy}: {error.strerror}.") from error
        if done.returncode or not done.stdout.strip():
            said = done.stderr.decode(errors="replace").strip() or "it printed nothing"
            complaint = said.splitlines()[0].removeprefix("Error: ").rstrip(".")
            needs = (
                "; it needs the job's user, root or CAP_SYS_PTRACE" if "permi" in complaint.lower() else ""
            )
            raise CaptureError(f"py-spy dump failed: {complaint}{needs}.")
        return done.stdout
