"""The `pods` collector: steps from the kubelet's folders of logs, and which job each pod is of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from perfd.collector import CollectorSpec, Options, PodJob, Settings
from perfd.errors import ConfigError, Unavailable, reason_of
from perfd.model import Event, EventKind, JobOrigin, Record
from perfd_collectors.pods.known_pods import KnownPod, KnownPods
from perfd_collectors.pods.log_files import PodFolder, pod_folders
from perfd_collectors.pods.pod_facts import worst_end
from perfd_collectors.pods.pod_log import LogFormat, PodLogs
from perfd_collectors.pods.pod_watch import PodWatch, access_of_pod
from perfd_collectors.training_log.formats import compiled_pattern
from perfd_collectors.training_log.log_parser import FORMATS

_REPEAT_EVERY_S = 30.0
"""How often the owners of jobs are repeated, for aggregators that start later."""


class PodsOptions(Options, frozen=True):
    """Which pods are read, and how."""

    directory: str = "/var/log/pods"
    """The kubelet's folder of logs."""
    namespaces: tuple[str, ...] = ("*",)
    """Names, or patterns with `*`, of namespaces whose pods are read."""
    exclude_namespaces: tuple[str, ...] = ("kube-*",)
    """Those of them whose pods are not."""
    api: bool = True
    """Ask the API server for labels and ends of the node's pods (`list` and `watch` on pods)."""
    framework: str | None = None
    """Parse only this framework's lines; default: those of all known ones."""
    patterns: tuple[str, ...] = ()
    """As in the collector `training_log`."""
    max_read_bytes: int = 8 * 1024 * 1024
    """Limit per collect, for all pods."""


class PodsCollector:
    """Reads the logs of the node's pods; a pod with its own agent is left to that."""

    def __init__(self, options: PodsOptions, settings: Settings, watch: PodWatch | None = None) -> None:
        self._options = options
        self._settings = settings
        self._watch = watch
        patterns = [compiled_pattern(text) for text in options.patterns]
        self._form = LogFormat(framework=options.framework, patterns=patterns)
        self._pods = KnownPods(watch, settings.clock)
        self._jobs: dict[str, PodLogs] = {}
        self._reported: dict[str, JobOrigin] = {}
        self._repeat_due_s = float("-inf")
        if watch is not None:
            watch.start()

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
            {pod.folder.uid: PodJob(pod.job, pod.folder.namespace, pod.own_agent) for pod in pods}
        )
        read = [pod for pod in pods if not pod.own_log]
        for pod in read:
            logs = self._jobs.setdefault(pod.job, PodLogs(pod.job, self._form))
            for container in pod.folder.containers():
                logs.follow(pod.folder.name, container)
        records = self._read(now_unix_ns)
        for job, logs in list(self._jobs.items()):
            records += self._end(logs, [pod for pod in read if pod.job == job], now_unix_ns)
        return [*self._origins(), *records]

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        for logs in self._jobs.values():
            logs.close()
        self._jobs.clear()

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
            found, taken = logs.read(limit, now_unix_ns)
            limit -= taken
            records += found
            if limit <= 0:
                break
        return records

    def _end(self, logs: PodLogs, pods: Sequence[KnownPod], now_unix_ns: int) -> list[Record]:
        """The end of a job, once all its pods here have ended and their logs are read."""
        if any(pod.end is None for pod in pods) or not logs.drained:
            return []
        ends = [pod.end for pod in pods if pod.end is not None]
        for pod in pods:
            self._pods.done(pod)
        self._jobs.pop(logs.job).close()
        self._reported.pop(logs.job, None)
        if not logs.trains or not ends:
            return []
        end = worst_end(ends)
        how = end.outcome.value.replace("_", " ")
        how += "" if end.exit_code is None else f" with exit code {end.exit_code}"
        return [
            Event(
                kind=EventKind.JOB_ENDED,
                time_unix_ns=now_unix_ns if end.time_unix_s is None else int(end.time_unix_s * 1e9),
                message=f"The pods of the job on this node ended: {how}.",
                job=logs.job,
                values={} if end.exit_code is None else {"exit_code": float(end.exit_code)},
                outcome=end.outcome,
            )
        ]

    def _origins(self) -> list[Record]:
        """Whose the jobs are that train."""
        now_s = self._settings.clock.monotonic_s()
        if now_s >= self._repeat_due_s:
            self._repeat_due_s = now_s + _REPEAT_EVERY_S
            self._reported.clear()
        training = {job for job, logs in self._jobs.items() if logs.trains}
        whose = {job: JobOrigin(job=job, namespace=job.partition("/")[0]) for job in sorted(training)}
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
        raise Unavailable(f"{options.directory} is not there: mount the node's folder of pod logs.")
    access = access_of_pod(os.environ) if options.api else None
    return PodsCollector(options, settings, PodWatch(access, settings.node) if access else None)


SPEC = CollectorSpec(name="pods", options=PodsOptions, create=create, enabled=False)
