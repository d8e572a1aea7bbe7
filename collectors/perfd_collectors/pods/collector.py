"""The `pods` collector: steps from the kubelet's folders of logs, and which job each pod is of.

It also counts pods that ask for perfd's agent and run without one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from perfd.collector import CollectorSpec, Column, Options, PodJob, Settings
from perfd.errors import ConfigError, SandboxError, Unavailable, reason_of
from perfd.model import Event, EventKind, JobOrigin, Record, SampleTable, Scope
from perfd_collectors.pods.api_access import access_of_pod
from perfd_collectors.pods.job_of_pod import owner_of, queue_of
from perfd_collectors.pods.job_reader import JobReader
from perfd_collectors.pods.known_pods import KnownPod, KnownPods
from perfd_collectors.pods.log_files import PodFolder, pod_folders
from perfd_collectors.pods.namespace_reader import NamespaceFacts, NamespaceKey, NamespaceReader
from perfd_collectors.pods.pod_facts import PodFacts, worst_end
from perfd_collectors.pods.pod_log import PodLogs
from perfd_collectors.pods.pod_parsers import LogFormat, ParsersHere, PodParsers, SandboxedParsers
from perfd_collectors.pods.pod_watch import PodWatch
from perfd_collectors.training_log.formats import FORMATS
from perfd_collectors.training_log.formats.user_patterns import compiled_pattern

log = logging.getLogger(__name__)

_LABEL = "perfd/inject"
_REPEAT_EVERY_S = 30.0
"""How often the owners of jobs are repeated, for aggregators that start later."""


def wants_agent(pod: PodFacts, namespace: NamespaceFacts | None, *, gpu_pods_only: bool) -> bool:
    """Whether the admission policy or webhook should have added an agent, as the chart's conditions say."""
    own = pod.labels.get(_LABEL)
    if own is not None:
        return own == "true"
    labeled = namespace is not None and namespace.labels.get(_LABEL) == "true"
    return labeled and (pod.has_gpu or not gpu_pods_only)


class MissingAgents:
    """Names each such pod once, in the log."""

    def __init__(self) -> None:
        self._logged: frozenset[str] = frozenset()

    def look(self, missing: Sequence[KnownPod]) -> None:
        """`missing` are all such pods that run now."""
        for pod in missing:
            if pod.folder.uid not in self._logged:
                log.warning(
                    "A pod that asks for perfd's agent by the label perfd/inject has none: it began before "
                    "the label or the admission policy took effect, or the admission failed. Restart it.",
                    extra={"namespace": pod.folder.namespace, "pod": pod.folder.name, "job": pod.job},
                )
        self._logged = frozenset(pod.folder.uid for pod in missing)


class PodsOptions(Options, frozen=True):
    """Which pods are read, and how."""

    directory: str = "/var/log/pods"
    """The kubelet's folder of logs."""
    namespaces: tuple[str, ...] = ("*",)
    """Names, or patterns with `*`, of namespaces whose pods are read."""
    exclude_namespaces: tuple[str, ...] = ("kube-*",)
    """Those of them whose pods are not."""
    api: bool = True
    """Ask the API server for labels and ends of the node's pods (`list` and `watch` on pods), for their
    namespaces, and for the Jobs of those that were deleted (`get`)."""
    owner_keys: tuple[str, ...] = ("perfd/owner", "owner")
    """Labels of pods, or labels or annotations of namespaces, that name a job's owner; Kubeflow's profiles
    write the second. Without one it is the pod's service account, unless that is `default`."""
    injected_gpu_pods_only: bool = True
    """In namespaces with the label `perfd/inject`, only pods with GPUs should have an agent."""
    framework: str | None = None
    """Parse only this framework's lines; default: those of all known ones."""
    patterns: tuple[str, ...] = ()
    """As in the collector `training_log`."""
    max_read_bytes: int = 8 * 1024 * 1024
    """Limit per collect, for all pods."""


class PodsCollector:
    """Reads the logs of the node's pods; a pod with its own agent is left to that."""

    def __init__(
        self,
        options: PodsOptions,
        settings: Settings,
        watch: PodWatch | None = None,
        *,
        namespaces: NamespaceReader | None = None,
        jobs: JobReader | None = None,
        cluster: str = "",
    ) -> None:
        self._options = options
        self._settings = settings
        self._watch = watch
        self._namespaces = namespaces
        self._readers = [one for one in (watch, namespaces, jobs) if one is not None]
        self._cluster = cluster
        self._missing_agents = MissingAgents()
        for text in options.patterns:
            compiled_pattern(text)
        form = LogFormat(framework=options.framework, patterns=options.patterns)
        self._parsers: PodParsers = (
            SandboxedParsers(form, settings.clock) if settings.sandboxed else ParsersHere(form)
        )
        self._pods = KnownPods(watch, jobs, settings.clock)
        self._jobs: dict[str, PodLogs] = {}
        self._reported: dict[str, JobOrigin] = {}
        self._repeat_due_s = float("-inf")
        for reader in self._readers:
            reader.start()

    def collect(self) -> Sequence[Record]:
        """Records of the lines since the last call, and of jobs that ended."""
        now_unix_ns = self._settings.clock.unix_ns()
        try:
            folders = [
                folder for folder in pod_folders(Path(self._options.directory)) if self._wanted(folder)
            ]
        except OSError as error:
            raise Unavailable(f"{self._options.directory} cannot be read: {reason_of(error)}.") from error
        pods = self._pods.look([folder for folder in folders if self._wanted(folder)])
        self._settings.pod_jobs.replace(
            {
                pod.folder.uid: PodJob(pod.job, pod.folder.namespace, pod.own_agent, self._cluster)
                for pod in pods
            }
        )
        if self._namespaces is not None:
            self._namespaces.want(frozenset(NamespaceKey(pod.folder.namespace) for pod in pods))
        read = sorted((pod for pod in pods if not pod.own_log), key=lambda pod: pod.created_unix_s)
        for pod in read:
            logs = self._jobs.setdefault(pod.job, PodLogs(pod.job, self._parsers))
            for container in pod.folder.containers():
                if not logs.follows(container):
                    before = {one.folder.name for one in read if one.job == pod.job and pod.replaces(one)}
                    logs.follow(pod.folder.name, container, before)
        records = self._read(now_unix_ns)
        for job, logs in list(self._jobs.items()):
            records += self._end(logs, [pod for pod in read if pod.job == job], now_unix_ns)
        return [*self._origins(pods), *records, *self._without_agent(pods, now_unix_ns)]

    def close(self) -> None:
        for reader in self._readers:
            reader.stop()
        for logs in self._jobs.values():
            logs.close()
        self._jobs.clear()
        self._parsers.close()

    def _wanted(self, folder: PodFolder) -> bool:
        def among(patterns: Sequence[str]) -> bool:
            return any(fnmatchcase(folder.namespace, pattern) for pattern in patterns)

        return among(self._options.namespaces) and not among(self._options.exclude_namespaces)

    def _read(self, now_unix_ns: int) -> list[Record]:
        limit = self._options.max_read_bytes
        records: list[Record] = []
        for job in list(self._jobs):
            # Each is first in its turn, so that a chatty one does not silence the others.
            logs = self._jobs[job] = self._jobs.pop(job)
            try:
                found, taken = logs.read(limit, now_unix_ns)
            except SandboxError:
                # They are read anew; those of other namespaces go on.
                self._jobs.pop(job).close()
                continue
            limit -= taken
            records += found
            if limit <= 0:
                break
        return records

    def _end(self, logs: PodLogs, pods: Sequence[KnownPod], now_unix_ns: int) -> list[Record]:
        """The end of a job, once all its pods here have ended and their logs are read."""
        if any(pod.end is None for pod in pods) or not logs.drained:
            return []
        ends = [
            pod.end
            for pod in pods
            if pod.end is not None and not any(another.replaces(pod) for another in pods)
        ]
        for pod in pods:
            self._pods.done(pod)
        self._jobs.pop(logs.job).close()
        self._reported.pop(logs.job, None)
        if not logs.trains or not ends:
            return []
        end = worst_end(ends)
        how = end.outcome.value.replace("_", " ")
        how += "" if end.exit_code is None else f" with exit code {end.exit_code}"
        values = {} if end.exit_code is None else {"exit_code": float(end.exit_code)}
        return [
            Event(
                kind=EventKind.JOB_ENDED,
                time_unix_ns=now_unix_ns if end.time_unix_s is None else int(end.time_unix_s * 1e9),
                message=f"The pods of the job on this node ended: {how}.",
                job=logs.job,
                values=values | ({"deleted": 1.0} if end.deleted else {}),
                outcome=end.outcome,
            )
        ]

    def _without_agent(self, pods: Sequence[KnownPod], now_unix_ns: int) -> list[Record]:
        """How many pods should have an agent and do not."""
        if self._watch is None:
            return []
        missing = [pod for pod in pods if pod.end is None and not pod.own_agent and self._wants_agent(pod)]
        self._missing_agents.look(missing)
        return [SampleTable.of_node(now_unix_ns, {"pods_without_agent": len(missing)})]

    def _wants_agent(self, pod: KnownPod) -> bool:
        return pod.facts is not None and wants_agent(
            pod.facts, self._namespace_of(pod), gpu_pods_only=self._options.injected_gpu_pods_only
        )

    def _namespace_of(self, pod: KnownPod) -> NamespaceFacts | None:
        if self._namespaces is None:
            return None
        return self._namespaces.found(NamespaceKey(pod.folder.namespace))

    def _origin(self, job: str, pods: Sequence[KnownPod]) -> JobOrigin:
        first = next((pod for pod in pods if pod.job == job and pod.facts is not None), None)
        origin = JobOrigin(job=job, cluster=self._cluster, namespace=job.partition("/")[0])
        if first is None or first.facts is None:
            return origin
        owner = owner_of(first.facts, self._namespace_of(first), self._options.owner_keys)
        return replace(origin, user=owner, partition=queue_of(first.facts))

    def _origins(self, pods: Sequence[KnownPod]) -> list[Record]:
        """Whose the jobs are that train."""
        now_s = self._settings.clock.monotonic_s()
        if now_s >= self._repeat_due_s:
            self._repeat_due_s = now_s + _REPEAT_EVERY_S
            self._reported.clear()
        training = {job for job, logs in self._jobs.items() if logs.trains}
        whose = {job: self._origin(job, pods) for job in sorted(training)}
        reported = [origin for job, origin in whose.items() if self._reported.get(job) != origin]
        self._reported |= whose
        return list(reported)


def create(options: PodsOptions, settings: Settings) -> PodsCollector:
    """A collector of the pods on this node; raises `Unavailable` without the kubelet's logs."""
    if options.framework is not None and options.framework not in FORMATS:
        raise ConfigError(
            f"collectors.pods.options.framework: {options.framework!r} is unknown; "
            f"use one of {', '.join(FORMATS)}."
        )
    if not Path(options.directory).is_dir():
        raise Unavailable(f"{options.directory} does not exist: mount the node's directory of pod logs.")
    access = access_of_pod(os.environ) if options.api else None
    cluster = os.environ.get("PERFD_CLUSTER", "")
    if access is None:
        return PodsCollector(options, settings, cluster=cluster)
    return PodsCollector(
        options,
        settings,
        PodWatch(access, settings.node),
        namespaces=NamespaceReader(access),
        jobs=JobReader(access),
        cluster=cluster,
    )


_WITHOUT_AGENT = Column(
    scope=Scope.NODE,
    name="pods_without_agent",
    help="Pods that ask for perfd's agent by the label perfd/inject, or whose namespace does, and have none.",
    source="the API server's pods and namespaces",
    absent="Without access to the API server.",
)
SPEC = CollectorSpec(
    name="pods", options=PodsOptions, create=create, enabled=False, columns=(_WITHOUT_AGENT,)
)
