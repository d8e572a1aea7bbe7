"""`perfd capture --slurm`: captures ranks of a job with a step that ends with the capture."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from perfd.capture.policy.capture_record import Capture, Participant
from perfd.capture.policy.rank_outcomes import apply, end_open, open_nodes, overall
from perfd.capture.selection import JobView, RankSelection, RankView, select
from perfd.clock import Clock
from perfd.config import AgentCaptureConfig
from perfd.model import CaptureRequest, CaptureState, CaptureTool
from perfd.session.slurm.helper_protocol import (
    CaptureOrder,
    FromNode,
    HelperSetup,
    LineAssembly,
    NodeReady,
    RankStatus,
    encode,
)
from perfd.session.slurm.slurm_jobs import RankScope, SlurmJob

TOOLS = (CaptureTool.PY_SPY, CaptureTool.KINETO, CaptureTool.NSYS, CaptureTool.FLIGHT_RECORDER)
"""Tools that need nothing but the job's processes."""

_HELPER_ID = "capture"
_LEAD_S: Mapping[CaptureTool, float] = {CaptureTool.KINETO: 14.0}
_USUAL_LEAD_S = 3.0
"""How far ahead the common start of several nodes is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SrunTimeouts:
    """How long to wait for srun and the helpers."""

    present_s: float = 90.0
    """srun waits for a busy controller, and Python starts from a network disk."""
    end_s: float = 150.0
    """Beyond the capture's own length: profilers write and check their files."""
    leave_s: float = 40.0
    """For the helpers to stop what runs, after their input was closed."""
    insist_s: float = 10.0
    """For srun to end after SIGTERM, before it is killed; and for its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """What the user requests."""

    capture_id: str
    tool: CaptureTool
    ranks: str
    duration_s: float
    directory: Path
    config: AgentCaptureConfig


@dataclass(slots=True, kw_only=True)
class _Received:
    """What the helpers have reported so far."""

    present: dict[str, NodeReady] = field(default_factory=dict)
    asked: bool = False
    """Whether the present nodes have their orders."""
    participants: tuple[Participant, ...] = ()
    srun_ended: bool = False


class SlurmCapture:
    """One capture over a running srun; every requested rank ends in one known state."""

    def __init__(
        self,
        wish: CaptureOptions,
        job: SlurmJob,
        place: RankScope,
        srun: subprocess.Popen[str],
        clock: Clock,
        *,
        patience: SrunTimeouts | None = None,
    ) -> None:
        self._wish = wish
        self._job = job
        self._place = place
        self._srun = srun
        self._clock = clock
        self._patience = patience or SrunTimeouts()
        self._received = _Received()
        self._inbox: SimpleQueue[tuple[str, FromNode] | None] = SimpleQueue()
        self._complaint: list[str] = []
        threading.Thread(target=self._read, name="perfd-srun", daemon=True).start()
        self._errors = threading.Thread(target=self._read_errors, name="perfd-srun-errors", daemon=True)
        self._errors.start()

    def run(self) -> Capture:
        """Carry it out. Ctrl-C ends it like a cancel: what runs is stopped and its files are deleted.

        Raises `CaptureError` if the requested ranks match none.
        """
        began_unix_s = self._clock.unix_ns() / 1e9
        why = "its node did not answer in time"
        try:
            self._send(
                HelperSetup(
                    job=self._job.name,
                    job_id=self._job.job_id,
                    step=self._place.step,
                    directory=str(self._wish.directory / self._wish.capture_id),
                    capture=_config(self._wish),
                )
            )
            self._listen(
                lambda received: len(received.present) == len(self._place.nodes), self._patience.present_s
            )
            self._ask()
            self._listen(
                lambda now: all(who.final for who in now.participants),
                self._wish.duration_s + self._patience.end_s,
            )
        except KeyboardInterrupt:
            why = "the capture was interrupted"
        finally:
            self._leave()
        capture = Capture(
            capture_id=self._wish.capture_id,
            job=self._job.name,
            tool=self._wish.tool,
            profile="",
            requested_unix_s=began_unix_s,
            start_unix_s=began_unix_s,
            max_duration_s=self._wish.duration_s,
            participants=self._received.participants,
            ended_unix_s=self._clock.unix_ns() / 1e9,
        )
        return _ended(
            capture,
            [
                node
                for node in self._place.nodes
                if not self._received.asked or node not in self._received.present
            ],
            self._words(why),
        )

    def _ask(self) -> None:
        """Choose among the present ranks, and send orders to their nodes."""
        present = {
            node: self._received.present[node] for node in self._place.nodes if node in self._received.present
        }
        views = [
            RankView(rank=rank.rank, node=node, gpu=rank.gpu)
            for node, answer in present.items()
            for rank in answer.ranks
        ]
        chosen = RankSelection(by_node={})
        if views:
            chosen = select(self._wish.ranks, JobView(job=self._job.name, nodes=list(present), ranks=views))
        self._received.participants = (
            *(Participant(node=node, rank=rank) for node, ranks in chosen.by_node.items() for rank in ranks),
            *(
                Participant(node="", rank=rank, state=CaptureState.REFUSED, reason=reason)
                for rank, reason in chosen.refused.items()
            ),
            *(
                Participant(node=node, rank=None, state=CaptureState.REFUSED, reason=answer.reason)
                for node, answer in present.items()
                if answer.reason and (not views or "all" in self._wish.ranks)
            ),
        )
        self._received.asked = True
        self._send(CaptureOrder(requests=self._requests(chosen)))

    def _requests(self, chosen: RankSelection) -> dict[str, CaptureRequest]:
        lead_s = _LEAD_S.get(self._wish.tool, _USUAL_LEAD_S) if len(chosen.by_node) > 1 else None
        start = None if lead_s is None else self._clock.unix_ns() + round(lead_s * 1e9)
        return {
            node: CaptureRequest(
                capture_id=_HELPER_ID,
                job=self._job.name,
                tool=self._wish.tool,
                ranks=ranks,
                max_duration_s=self._wish.duration_s,
                start_unix_ns=start,
            )
            for node, ranks in chosen.by_node.items()
        }

    def _listen(self, enough: Callable[[_Received], bool], timeout_s: float) -> None:
        """Read the helpers' messages until they suffice, srun ends, or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while not enough(self._received) and not self._received.srun_ended:
            try:
                item = self._inbox.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except Empty:
                return
            self._receive(item)

    def _receive(self, item: tuple[str, FromNode] | None) -> None:
        if item is None:
            self._received.srun_ended = True
            return
        node, message = item
        if isinstance(message, NodeReady):
            self._received.present[node] = message
        elif isinstance(message, RankStatus):
            self._received.participants = apply(self._received.participants, node, message.status)

    def _leave(self) -> None:
        """Close the helpers' input, which ends what they still do, and wait for srun."""
        if self._srun.stdin is not None:
            # srun may have been faster.
            with contextlib.suppress(OSError):
                self._srun.stdin.close()
        self._listen(lambda _: False, self._patience.leave_s)
        if not self._received.srun_ended:
            self._srun.terminate()
        self._end()
        # Its last output is the reason; processes that it left behind may keep the pipe open.
        self._errors.join(self._patience.insist_s)

    def _end(self) -> None:
        """Wait for srun to end, killing it if it takes too long; the helpers end with their input."""
        for insist in (self._srun.terminate, self._srun.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._srun.wait(self._patience.insist_s)
                return
            insist()
        # Killed but not gone: it hangs in the kernel, and the capture is reported anyway.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._srun.wait(self._patience.insist_s)

    def _words(self, why: str) -> str:
        """Why an outcome is missing, with the message of a helper or of srun if there is one."""
        if not self._complaint:
            return why
        of_helpers = [line for line in self._complaint if not line.startswith(("srun:", "slurmstepd:"))]
        return (of_helpers or self._complaint)[-1].removesuffix(".")

    def _send(self, message: HelperSetup | CaptureOrder) -> None:
        if self._srun.stdin is None:
            return
        # If srun has ended, the outcomes show it.
        with contextlib.suppress(OSError):
            self._srun.stdin.write(encode(message))
            self._srun.stdin.flush()

    def _read(self) -> None:
        assembly = LineAssembly()
        for line in self._srun.stdout or ():
            if (received := assembly.feed(line)) is not None:
                self._inbox.put(received)
        self._inbox.put(None)

    def _read_errors(self) -> None:
        for line in self._srun.stderr or ():
            # Enough for the reason; a helper's traceback ends with it.
            self._complaint = [*self._complaint, line.strip()][-20:]


def capture_id(job: str, now_unix_s: float) -> str:
    """The name of a capture, and of its folder."""
    return f"{job}-{datetime.fromtimestamp(now_unix_s, UTC):%Y%m%dT%H%M%S}"


def _config(wish: CaptureOptions) -> AgentCaptureConfig:
    """The helpers' limits: the operator's, without servers and without what needs a log."""
    none = AgentCaptureConfig()
    return msgspec.structs.replace(
        wish.config,
        output_directory=None,
        kineto=msgspec.structs.replace(wish.config.kineto, enabled=wish.tool is CaptureTool.KINETO),
        sglang=none.sglang,
        vllm=none.vllm,
        max_slowdown_ratio=None,
    )


def _ended(capture: Capture, silent: Sequence[str], why: str) -> Capture:
    """The capture with an outcome for every rank; those of absent nodes are lost."""
    reason = f"Its end was not reported: {why}."
    lost = tuple(
        Participant(node=node, rank=None, state=CaptureState.LOST, reason=f"It received no order: {why}.")
        for node in silent
    )
    capture = end_open(
        replace(capture, participants=(*capture.participants, *lost)),
        dict.fromkeys(open_nodes(capture), (CaptureState.LOST, reason)),
    )
    state, words = overall(capture.participants)
    return replace(capture, state=state, reason=words)
