"""The collector: waits for NVML's events, and makes records of them."""

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
MEANINGS: Mapping[int, str] = {
    0x2: "A double-bit memory error: drain the node and check the GPU.",
    0x400: "A memory row or page was retired: it is replaced at the next reset of the GPU.",
    0x800: "A memory row or page could not be retired: the GPU must be exchanged.",
    0x1000: "Poisoned data was read and contained: the process that read it has ended.",
    0x2000: "Poisoned data was read and could not be contained: reset the GPU.",
    0x4000: "The GPU became unavailable: look at the kernel log, and reset the GPU.",
    0x8000: "The driver asks for a recovery of the GPU: `nvidia-smi -q` says which.",
}
"""Events other than XIDs, by NVML's `nvmlEventType` bit; `nvml` counts the corrected single-bit errors."""

MAX_EVENTS_PER_COLLECT = 64
_NO_INSTANCE = 0xFFFFFFFF


class NvmlEventsOptions(Options, frozen=True):
    """Options of the `nvml_events` collector."""

    wait_s: float = 0.9
    """How long one collect waits for an event; at most 1 s, so that the agent can stop in time."""


class NvmlEventsCollector:
    """XIDs and memory errors as they happen; those before the start are not told by NVML.

    `collect` blocks until there is an event, at most `wait_s`. A lost GPU ends
    the set of events: `Unavailable`, and the agent creates the collector anew.
    """

    def __init__(self, nvml: Nvml, options: NvmlEventsOptions, settings: Settings) -> None:
        start(nvml, settings.sys)
        self._nvml = nvml
        self._clock = settings.clock
        self._wait_ms = round(min(max(options.wait_s, 0.0), 1.0) * 1000)
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
                break  # The next collect raises it again; what came before must not be lost.
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
            return  # The driver went first, and took what was to be freed.

    def _register(self) -> None:
        registered = 0
        denied = False
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                registered += self._register_one(handle)
            except NvmlError as error:
                # One GPU that is lost, or that this user may not watch, leaves the others.
                denied = denied or error_code(error) == pynvml.NVML_ERROR_NO_PERMISSION
        if not registered:
            raise Unavailable(
                "NVML lets only root watch the events of GPUs in MIG mode: run the agent as root, or do "
                "without XIDs."
                if denied
                else "No GPU of this node reports events through NVML: XIDs are in the kernel log only."
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
                    "A GPU was lost, which ends NVML's events of all GPUs: `nvml` says which one; they are "
                    "watched again as soon as NVML allows it."
                ) from error
            raise unavailable(error) from error

    def _event(self, data: Structure) -> Event:
        gpu = self._index_of(data.device)
        xid = int(data.eventData) if data.eventType == XID else None
        message = describe(xid, self._xids) if xid is not None else MEANINGS.get(data.eventType, "")
        return Event(
            kind=EventKind.HARDWARE_ERROR,
            time_unix_ns=self._clock.unix_ns(),
            message=message or f"An event that perfd does not know: NVML type {data.eventType:#x}.",
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
