"""Sampling of GPU times: when they are recorded, and the estimated time in kernels in between."""

from __future__ import annotations

import msgspec

from perfd.errors import Unavailable

_MIN_SAMPLE_S = 5.0
"""Shortest sample: a few training steps, and several windows of the collector. Chosen, not measured."""
_MAX_PERIOD_S = 600.0
"""Longest time from one sample to the next: the aggregator drops communicators that are silent for longer."""


def check_sampling(sample_s: float, one_in: int) -> None:
    """Raise `Unavailable` with a fix when the settings are invalid."""
    if one_in < 1:
        raise Unavailable(f"sample_one_in is {one_in}: it must be 1 (always record) or greater.")
    if one_in > 1 and not (sample_s >= _MIN_SAMPLE_S and sample_s * one_in <= _MAX_PERIOD_S):
        raise Unavailable(
            f"sample_s is {sample_s:g} and sample_one_in {one_in}: sample_s must be at least"
            f" {_MIN_SAMPLE_S:g} s, and sample_s times sample_one_in at most {_MAX_PERIOD_S:g} s."
        )


def in_sample(unix_s: float, sample_s: float, one_in: int) -> bool:
    """Whether GPU times are recorded now: at the same time on all nodes by their clocks."""
    return one_in == 1 or int(unix_s // sample_s) % one_in == 0


class BusyTime(msgspec.Struct):
    """A process's time in NCCL kernels: measured in samples, estimated in between from operations started."""

    begun: int = 0
    total_ns: float = 0.0
    sample_ns: int = 0
    sample_operations: int = 0
    recording: bool = False
    measured: bool = False

    @property
    def total_s(self) -> float | None:
        """Cumulative; None before anything was measured."""
        return self.total_ns / 1e9 if self.measured else None

    def add(self, busy_ns: int, begun: int, *, recording: bool) -> None:
        """Add a window with or without recorded times; `begun` counts operations since process start."""
        operations, self.begun = max(0, begun - self.begun), begun
        if recording and not self.recording:
            self.sample_ns = self.sample_operations = 0
        self.recording = recording
        if recording:
            self.measured = True
            self.sample_ns += busy_ns
            self.sample_operations += operations
            self.total_ns += busy_ns
        elif self.sample_operations:
            self.total_ns += operations * self.sample_ns / self.sample_operations
