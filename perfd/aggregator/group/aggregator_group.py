"""One member of a group: an `Aggregator` for each partition that it holds, and one HTTP server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic

from perfd.aggregator.aggregator import Aggregator
from perfd.aggregator.alerts import AlertEvaluation
from perfd.aggregator.audit import AuditLog
from perfd.aggregator.configured_analysis import analysis_settings
from perfd.aggregator.group.group_pages import GroupPages
from perfd.aggregator.group.leases import Leases
from perfd.aggregator.group.partition_config import check_group, group_hosts, partition_config
from perfd.aggregator.group.peers import Peers
from perfd.aggregator.group.unstored_rows_bucket import SpareBucket
from perfd.aggregator.history import configured_database
from perfd.aggregator.http_endpoints import HttpEndpoints
from perfd.aggregator.partition import Partition
from perfd.aggregator.series.metric_names import MetricNames
from perfd.clock import SystemClock
from perfd.config import AggregatorConfig, check_page_links
from perfd.errors import ConfigError, PerfdError
from perfd.net import Handler
from perfd.web.live_updates import Live

log = logging.getLogger(__name__)

_RETRY_S = 0.5
"""Wait before retrying a partition that failed to start, for example because its history is still locked."""
_STARTS_AT_ONCE = 2
"""Starts of partitions: each waits for some 35 answers of the database, while another one can work. More
would take time from partitions that run. All types that they decode are prepared at import: msgspec 0.22
crashes if two threads first decode a type at once."""
_STOP_WITHIN_S = 12.0
"""For all partitions together to finish their writes; below the 15 s after which many supervisors kill."""


class AggregatorGroup:
    """Serves its share of the partitions from `start` to `stop`; raises `ConfigError` or `PerfdError`."""

    def __init__(self, config: AggregatorConfig) -> None:
        self._group = group = check_group(config)
        if config.nats is None or config.http_listen is None:
            raise ConfigError("nats.group: configure `nats` and `http_listen`.")
        self._config = config
        audit = AuditLog(Path(config.audit_file) if config.audit_file else None, SystemClock())
        self._http = HttpEndpoints(config, audit, group_hosts(config))
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._leases = Leases(config.nats, group, self._changed.set)
        self._spare = SpareBucket(config.nats)
        # Loaded now, so that takeovers are fast and errors in the configuration are raised at startup.
        AlertEvaluation(config.rules)
        analysis_settings(config.analysis)
        MetricNames.installed()
        check_page_links(config.links)
        configured_database(config.history)
        self._live = Live()
        self._pages = GroupPages(
            lambda: self._leases.view,
            self._handlers,
            Peers(group.answer_within_s, group.ca),
            group.partitions,
            self._live,
        )
        self._running: dict[int, tuple[int, Aggregator]] = {}
        """Lease epoch and aggregator of each partition that runs here."""
        self._busy: set[int] = set()
        """Partitions being started or stopped."""
        self._lock = threading.Lock()
        self._starting = threading.Semaphore(_STARTS_AT_ONCE)
        self._workers = ThreadPoolExecutor(group.partitions, "perfd-partition")
        self._thread = threading.Thread(target=self._run, name="perfd-partitions", daemon=True)

    @property
    def http_address(self) -> str | None:
        """Address of the page, /api/v1 and the partitions' metrics; None before the start."""
        return self._http.address

    def start(self) -> None:
        """Listen and join the group; raises `PerfdError` if an address is in use."""
        try:
            self._http.start(self._pages.routes())
        except PerfdError:
            self.stop()
            raise
        self._spare.start()
        self._leases.start(self._group.address or self._http.url)
        self._thread.start()

    def stop(self) -> None:
        """Release all partitions and stop. May be called twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._changed.set()
        deadline_s = monotonic() + _STOP_WITHIN_S
        if self._thread.is_alive():
            self._thread.join(deadline_s - monotonic())
        self._live.close()
        # Also waits for partitions that are still starting.
        self._workers.shutdown(wait=True)
        stopping = [threading.Thread(target=one.stop) for _, one in self._running.values()]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join(max(0.0, deadline_s - monotonic()))
        self._spare.stop()
        self._leases.stop()
        self._http.close()
        self._pages.close()

    def _handlers(self, partition: int) -> Mapping[str, Handler] | None:
        epoch, running = self._running.get(partition, (0, None))
        return running.handlers if running is not None and self._leases.answers(partition, epoch) else None

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.wait(min(_RETRY_S, self._config.round_interval_s))
            self._changed.clear()
            self._live.notify()
            mine = self._leases.mine()
            with self._lock:
                for number in {*self._running, *mine} - self._busy:
                    epoch, running = self._running.get(number, (None, None))
                    if epoch == mine.get(number) and not (running is not None and running.superseded):
                        continue
                    self._busy.add(number)
                    self._workers.submit(partial(self._follow, number, mine.get(number), running))
                # Partitions that never started have nothing to stop.
                for number in self._leases.releasing() - self._busy - self._running.keys():
                    self._leases.released(number)

    def _follow(self, number: int, epoch: int | None, running: Aggregator | None) -> None:
        """Stop the aggregator of a partition whose lease ended, or start one for a new lease.

        One whose history another one has written to meanwhile is stopped too, and started anew.
        """
        try:
            if running is not None:
                running.stop()
                with self._lock:
                    self._running.pop(number, None)
                self._leases.released(number)
                log.info("A partition was given up.", extra={"partition": number})
            elif epoch is not None and not self._stopping.is_set():
                self._begin(number, epoch)
        except PerfdError as error:
            log.warning(
                "A partition cannot be started now; it is tried again.",
                extra={"partition": number, "reason": str(error)},
            )
            self._stopping.wait(_RETRY_S)
        except Exception:
            log.exception("A partition failed; it is tried again.", extra={"partition": number})
            self._stopping.wait(_RETRY_S)
        finally:
            with self._lock:
                self._busy.discard(number)
            self._changed.set()

    def _begin(self, number: int, epoch: int) -> None:
        started_s = monotonic()
        held = partial(self._leases.held, number, epoch)
        partition = Partition(
            number=number,
            count=self._group.partitions,
            epoch=epoch,
            held=held,
            serves=partial(self._leases.serves, number, epoch),
            spare=self._spare.of(number, held),
            members=lambda: len(self._leases.view.members),
        )
        with self._starting:
            one = Aggregator(partition_config(self._config, number), partition=partition)
            one.start()
        with self._lock:
            self._running[number] = epoch, one
        log.info(
            "A partition is served.",
            extra={"partition": number, "epoch": epoch, "started_s": round(monotonic() - started_s, 2)},
        )
