"""When times on the GPU are recorded, if not always, and what is known of the time in kernels meanwhile."""

from __future__ import annotations

import msgspec

from perfd.errors import Unavailable

_SHORTEST_S = 5.0
"""A few steps; and so much longer than a window that what was left out in between is noticed."""
_LONGEST_ROUND_S = 600.0
"""Communicators that nothing was heard of for longer are taken for gone."""


def check_sampling(sample_s: float, one_in: int) -> None:
    """Raise `Unavailable` with what to do about settings that cannot be."""
    if one_in < 1:
        raise Unavailable(f"sample_one_in is {one_in}: it must be at least 1, which records always.")
    if one_in > 1 and not (sample_s >= _SHORTEST_S and sample_s * one_in <= _LONGEST_ROUND_S):
        raise Unavailable(
            f"sample_s is {sample_s:g} and sample_one_in {one_in}: a sample takes at least {_SHORTEST_S:g} s,"
            f" and comes every {_LONGEST_ROUND_S:g} s at least."
        )


def in_sample(unix_s: float, sample_s: float, one_in: int) -> bool:
    """Whether times are recorded now: at the same time on all nodes, as far as their clocks agree."""
    return one_in == 1 or int(unix_s // sample_s) % one_in == 0


class BusyTime(msgspec.Struct):
    """A process's time in kernels: measured in samples, between them estimated by operations begun."""

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
        """Take in a window in which times were recorded, or were not; `begun` are operations ever begun."""
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
