"""The pods on this node: what job each is of, whether it has its own agent, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfd.clock import Clock
from perfd.model import JobOutcome
from perfd_collectors.pods.job_of_pod import job_of, job_of_name
from perfd_collectors.pods.job_reader import DeletedPod, JobReader
from perfd_collectors.pods.log_files import PodFolder, log_files
from perfd_collectors.pods.pod_facts import PodEnd, PodFacts, replaces
from perfd_collectors.pods.pod_watch import PodWatch

_SIDECAR, _INJECTED = "perfd", "perfd-agent"
"""The container of a pod's own agent: of the chart's jobs, which reads the output, and an injected one."""
_LABEL = "perfd-agent"
_WAIT_S = 10.0
"""How long a pod's name is not used while the API server has not reported its labels."""
_OLD_S = 600.0
"""What ended longer ago, or was silent for longer, when the agent starts is not reported."""


@dataclass(slots=True)
class KnownPod:
    """A pod whose logs are on this node."""

    folder: PodFolder
    job: str
    """`NAMESPACE/NAME`."""
    own_agent: bool
    """Its own agent reports its ranks."""
    own_log: bool
    """Its own agent reads its output, too."""
    facts: PodFacts | None = None
    """What the API server said of it last."""
    end: PodEnd | None = None

    @property
    def created_unix_s(self) -> float:
        """0 where the API server has not said it."""
        return (self.facts.created_unix_s if self.facts else None) or 0.0

    def replaces(self, other: KnownPod) -> bool:
        """Whether it was created once the other pod of its job had ended or was deleted."""
        if self.facts is None or other.facts is None or self is other:
            return False
        return replaces(self.facts, other.facts, other.end)


class KnownPods:
    """Decides at each look which pods there are; a pod keeps the name of its job."""

    def __init__(self, watch: PodWatch | None, jobs: JobReader | None, clock: Clock) -> None:
        self._watch = watch
        self._jobs = jobs
        self._clock = clock
        self._pods: dict[str, KnownPod] = {}
        self._done: set[str] = set()
        """Pods that have ended, or are too old, while their folders are still there."""
        self._seen_s: dict[str, float] = {}
        """When each pod was seen first."""

    def look(self, folders: Sequence[PodFolder]) -> list[KnownPod]:
        """The pods of these folders that are known by now, ended ones included until `done`."""
        here = {folder.uid for folder in folders}
        self._done &= here
        self._seen_s = {uid: seen for uid, seen in self._seen_s.items() if uid in here}
        facts = {} if self._watch is None else self._watch.pods()
        for folder in folders:
            if folder.uid not in self._pods and folder.uid not in self._done:
                self._meet(folder, facts.get(folder.uid))
        asked: set[DeletedPod] = set()
        for uid, pod in self._pods.items():
            pod.facts = facts.get(uid, pod.facts)
            pod.end = self._cause(facts.get(uid), self._end(facts.get(uid), there=uid in here), asked)
        if self._jobs is not None:
            self._jobs.want(frozenset(asked))
        if self._watch is not None:
            for uid in facts.keys() - here:
                if uid not in self._pods:
                    self._watch.forget(uid)
        return list(self._pods.values())

    def done(self, pod: KnownPod) -> None:
        """Forget a pod whose end was reported."""
        self._pods.pop(pod.folder.uid, None)
        self._done.add(pod.folder.uid)

    def _meet(self, folder: PodFolder, facts: PodFacts | None) -> None:
        now_s, now_unix_s = self._clock.monotonic_s(), self._clock.unix_ns() / 1e9
        first = folder.uid not in self._seen_s
        waited_s = now_s - self._seen_s.setdefault(folder.uid, now_s)
        if facts is None and self._watch is not None:
            if waited_s < _WAIT_S:
                return
            if self._watch.problem is None:
                # The API server does not have it: the kubelet has not cleaned up yet.
                self._done.add(folder.uid)
                return
        if facts is not None:
            ended = facts.end is not None and (facts.end.time_unix_s or 0.0) < now_unix_s - _OLD_S
        else:
            ended = first and _written_unix_s(folder) < now_unix_s - _OLD_S
        if ended:
            self._done.add(folder.uid)
            return
        name = job_of_name(folder.name) if facts is None else job_of(facts)
        label = None if facts is None else facts.labels.get(_LABEL)
        own_log = label == "sidecar" or (folder.path / _SIDECAR).is_dir()
        self._pods[folder.uid] = KnownPod(
            folder,
            f"{folder.namespace}/{name}",
            own_agent=own_log or label == "injected" or (folder.path / _INJECTED).is_dir(),
            own_log=own_log,
        )

    def _end(self, facts: PodFacts | None, *, there: bool) -> PodEnd | None:
        if facts is not None and facts.end is not None:
            return facts.end
        deleted = facts is not None and self._watch is not None and not self._watch.is_present(facts.uid)
        if deleted:
            return PodEnd(outcome=JobOutcome.CANCELLED, deleted=True)
        return None if there else PodEnd(outcome=JobOutcome.UNKNOWN)

    def _cause(self, facts: PodFacts | None, end: PodEnd | None, asked: set[DeletedPod]) -> PodEnd | None:
        """The end of a pod, once its Job was asked why it was deleted."""
        if facts is None or not facts.batch_job or self._jobs is None:
            return end
        if facts.deleted_unix_s is None and (end is None or not end.deleted):
            return end
        first = DeletedPod(facts.namespace, facts.batch_job, facts.uid, ended=False)
        asked.add(first)
        if end is None or not end.deleted:
            return end
        cause = self._jobs.found(first)
        if cause is not None and cause.outcome is None:
            asked.add(first._replace(ended=True))
            cause = self._jobs.found(first._replace(ended=True))
        if cause is None:
            return None
        if cause.outcome is None:
            return end
        # What the pod's processes ended with is that of the signal that stopped them.
        code = end.exit_code if cause.outcome is JobOutcome.TIME_LIMIT else None
        return replace(end, outcome=cause.outcome, exit_code=code, deleted=False)


def _written_unix_s(folder: PodFolder) -> float:
    """When one of a pod's containers wrote last."""
    newest = 0.0
    for container in folder.containers():
        for file in log_files(container):
            try:
                newest = max(newest, file.path.stat().st_mtime)
            except OSError:
                continue
    return newest
