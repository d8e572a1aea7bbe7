"""The `nvml_events` collector: waits for NVML's events and turns them into records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pynvml

from perfd.collector import Options, Settings
from perfd.errors import Unavailable
from perfd.model import Event, EventKind, Record
from perfd_collectors.nvml.nvml_api import (
    Fault,
    Handle,
    Nvml,
    NvmlError,
    Structure,
    error_code,
    fault_of,
    start,
    unavailable,
)
from perfd_collectors.nvml_events.xids import Cause, Xid, describe, load_xids

XID = 0x8
"""`nvmlEventTypeXidCriticalError` of nvml.h."""
MEANINGS: Mapping[int, str] = {
    0x2: "Double-bit memory error: drain the node and check the GPU.",
    0x400: "A memory row or page was retired: it is remapped at the next GPU reset.",
    0x800: "A memory row or page could not be retired: the GPU must be replaced.",
    0x1000: "Poisoned data was read and contained: the process that read it was terminated.",
    0x2000: "Poisoned data was read and not contained: reset the GPU.",
    0x4000: "The GPU became unavailable: check the kernel log and reset the GPU.",
    0x8000: "The driver requests recovery of the GPU: see `nvidia-smi -q`.",
}
"""Events other than XIDs, by `nvmlEventType` bit; the `nvml` collector counts corrected errors."""

MAX_EVENTS_PER_COLLECT = 64
"""Bounds the time of a collect during a burst; the rest comes with the next one. Chosen, not measured."""
_MAX_WAIT_S = 1.0
"""The contract of a collector: `collect` blocks for at most a second."""
_NO_INSTANCE = 0xFFFFFFFF
"""`gpuInstanceId` of an event that is not of a MIG slice."""


class NvmlEventsOptions(Options, frozen=True):
    """Options of the `nvml_events` collector."""

    wait_s: float = 0.9
    """How long a collect waits for an event; at most 1 s, so that the agent can stop."""


class NvmlEventsCollector:
    """XIDs and memory errors as they happen; NVML does not report earlier ones.

    `collect` blocks until there is an event, for at most `wait_s`. A lost GPU
    invalidates the event set: `Unavailable`, and the agent recreates the collector.
    """

    def __init__(self, nvml: Nvml, options: NvmlEventsOptions, settings: Settings) -> None:
        start(nvml, settings.sys)
        self._nvml = nvml
        self._clock = settings.clock
        self._wait_ms = round(min(max(options.wait_s, 0.0), _MAX_WAIT_S) * 1000)
        self._xids = load_xids()
        self._event_set: Structure | None = None
        self._open = True
        try:
            self._event_set = nvml.nvmlEventSetCreate()
            self._register()
        except NvmlError as error:
            self.close()
            raise unavailable(error) from error
        except Unavailable:
            self.close()
            raise

    def collect(self) -> Sequence[Record]:
        first = self._next(self._wait_ms)
        events = [] if first is None else [self._event(first)]
        while events and len(events) < MAX_EVENTS_PER_COLLECT:
            try:
                data = self._next(0)
            except Unavailable:
                break  # The next collect raises it again; these events must not be lost.
            if data is None:
                break
            events.append(self._event(data))
        return events

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            if self._event_set is not None:
                self._nvml.nvmlEventSetFree(self._event_set)
            self._nvml.nvmlShutdown()
        except NvmlError:
            return  # The driver was unloaded first, which freed everything.

    def _register(self) -> None:
        registered = 0
        denied = False
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                registered += self._register_one(handle)
            except NvmlError as error:
                # The other GPUs may still be available.
                denied = denied or error_code(error) == pynvml.NVML_ERROR_NO_PERMISSION
        if not registered:
            raise Unavailable(
                "Only root may read events of GPUs in MIG mode: run the agent as root, or do without XIDs."
                if denied
                else "No GPU of this node reports events through NVML: XIDs are only in the kernel log."
            )

    def _register_one(self, handle: Handle) -> bool:
        wanted = XID
        for kind in MEANINGS:
            wanted |= kind
        supported = self._nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
        if supported:
            self._nvml.nvmlDeviceRegisterEvents(handle, supported, self._event_set)
        return bool(supported)

    def _next(self, wait_ms: int) -> Structure | None:
        try:
            return self._nvml.nvmlEventSetWait_v2(self._event_set, wait_ms)
        except NvmlError as error:
            if error_code(error) == pynvml.NVML_ERROR_TIMEOUT:
                return None
            if fault_of(error) is Fault.LOST:
                raise Unavailable(
                    "A GPU was lost, which stops NVML's events for all GPUs until NVML accepts a new"
                    " event set; the `nvml` collector reports which GPU."
                ) from error
            raise unavailable(error) from error

    def _event(self, data: Structure) -> Event:
        gpu = self._index_of(data.device)
        xid = int(data.eventData) if data.eventType == XID else None
        message = describe(xid, self._xids) if xid is not None else MEANINGS.get(data.eventType, "")
        return Event(
            kind=EventKind.HARDWARE_ERROR,
            time_unix_ns=self._clock.unix_ns(),
            message=message or f"Unknown NVML event of type {data.eventType:#x}.",
            gpu=gpu,
            code=xid,
            values=_values(data, self._xids.get(xid) if xid is not None else None),
        )

    def _index_of(self, device: Handle) -> int | None:
        try:
            return self._nvml.nvmlDeviceGetIndex(device)
        except NvmlError:
            return None


def _values(data: Structure, xid: Xid | None) -> dict[str, float]:
    values = {"application_error": float(xid.cause is Cause.APPLICATION)} if xid else {}
    if data.gpuInstanceId != _NO_INSTANCE:
        values["gpu_instance"] = float(data.gpuInstanceId)
    return values
