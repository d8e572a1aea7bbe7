"""Takes suspects out of scheduling by the scheduler's own command, where an operator switched that on."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from perfd.aggregator.audit import AuditLog
from perfd.config import NodesConfig
from perfd.errors import ConfigError, reason_of
from perfd.nodes import DONE, Drain, DrainLimits, NodeStanding, Scheduler, drains_due

_WITHIN_S = 30.0
"""How long the scheduler's command may take."""
_MOST_PAST = 1000
"""Drains in memory, the newest."""
_MOST_CHARS = 300
"""Of what a failed command printed."""

Run = Callable[[Sequence[str]], str]
"""Runs a command; returns `done`, or why it failed."""


def run_command(command: Sequence[str]) -> str:
    """Run a command without a shell; returns `done`, or why it failed in a line."""
    try:
        ran = subprocess.run(
            list(command), capture_output=True, timeout=_WITHIN_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within {_WITHIN_S:.0f} s."
    except OSError as error:
        return f"{command[0]}: {reason_of(error)}."
    if ran.returncode == 0:
        return DONE
    said = (ran.stderr or ran.stdout).decode(errors="replace").strip().splitlines()
    reason = said[-1] if said else "it said nothing"
    return f"{command[0]} exited with {ran.returncode}: {reason}"[:_MOST_CHARS]


def drain_limits(config: NodesConfig) -> DrainLimits:
    """What an operator allows; nothing without `drain`."""
    if config.drain is None:
        return DrainLimits(scheduler=Scheduler.SLURM, nodes_per_day=0)
    if config.drain.nodes_per_day < 1:
        raise ConfigError("nodes.drain.nodes_per_day: it must be at least 1; null `drain` drains nothing.")
    return DrainLimits(scheduler=Scheduler(config.drain.scheduler), nodes_per_day=config.drain.nodes_per_day)


class DrainRunner:
    """Decides by `drains_due` and runs one command after the other in a thread. Thread-safe."""

    def __init__(self, limits: DrainLimits, audit: AuditLog, run: Run = run_command) -> None:
        self._limits = limits
        self._audit = audit
        self._run = run
        self._lock = threading.Lock()
        self._past: list[Drain] = []
        self._changed: list[Drain] = []
        self._worker: threading.Thread | None = None

    def restore(self, past: Iterable[Drain]) -> None:
        """Know what earlier processes did."""
        with self._lock:
            self._past = [*past, *self._past][-_MOST_PAST:]

    def past(self) -> list[Drain]:
        """What was drained or tried, oldest first."""
        with self._lock:
            return list(self._past)

    def changes(self) -> list[Drain]:
        """What changed since it was asked last."""
        with self._lock:
            changed, self._changed = self._changed, []
        return changed

    def act(self, suspects: Sequence[NodeStanding], now_unix_s: float) -> None:
        """Start what is due; returns at once. Nothing starts while a command runs."""
        with self._lock:
            if self._worker is not None and self._worker.is_alive():
                return
            due = drains_due(suspects, self._past, self._limits, now_unix_s)
            if not due:
                return
            self._past = [*self._past, *due][-_MOST_PAST:]
            self._changed += due
            self._worker = threading.Thread(target=self._drain, args=(due,), name="perfd-drain", daemon=True)
            self._worker.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until nothing runs, for tests and for the end."""
        worker = self._worker
        if worker is not None:
            worker.join(timeout_s)

    def _drain(self, due: Sequence[Drain]) -> None:
        for drain in due:
            # The audit log has it before it is done, whatever happens then.
            self._audit.did("node drain", actor="perfd", node=drain.node, reason=drain.reason)
            outcome = self._run(drain.command)
            self._audit.did("node drain ended", actor="perfd", node=drain.node, outcome=outcome)
            ended = replace(drain, outcome=outcome)
            with self._lock:
                self._past = [ended if one is drain else one for one in self._past]
                self._changed.append(ended)
