"""Which named range the host was in, at each time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from perfd.trace.breakdown.loader_time import is_loading, of_launching_threads
from perfd.trace.breakdown.rank_breakdown import RankTimeline


class HostRanges:
    """The innermost range of a rank's launching threads: of those that are open the one that began last."""

    def __init__(self, timeline: RankTimeline) -> None:
        self._phases = of_launching_threads(timeline.trace, timeline)
        self._cuts: list[tuple[int, str, bool]] | None = None
        self._times: list[int] = []

    def pieces(self, start_ns: int, end_ns: int) -> Iterator[tuple[int, int, str, bool]]:
        """Begin, end, innermost range (empty for none) and whether any range there is around input."""
        if self._cuts is None:
            self._cuts = self._all_cuts()
            self._times = [time for time, _, _ in self._cuts]
        at = bisect_right(self._times, start_ns) - 1
        while start_ns < end_ns:
            until = min(self._times[at + 1], end_ns) if at + 1 < len(self._times) else end_ns
            _, name, loads = self._cuts[at] if at >= 0 else (0, "", False)
            if start_ns < until:
                yield start_ns, until, name, loads
            start_ns, at = until, at + 1

    def _all_cuts(self) -> list[tuple[int, str, bool]]:
        """From when on which range is the innermost one, in order."""
        events = sorted(
            [(phase.start_ns, 1, at) for at, phase in enumerate(self._phases)]
            + [(phase.end_ns, 0, at) for at, phase in enumerate(self._phases)]
        )
        open_: dict[int, bool] = {}
        cuts: list[tuple[int, str, bool]] = []
        for time, begins, at in events:
            if begins:
                open_[at] = is_loading(self._phases[at].name)
            else:
                open_.pop(at, None)
            inner = next(reversed(open_), None)
            cut = (time, "" if inner is None else self._phases[inner].name, any(open_.values()))
            if cuts and cuts[-1][0] == time:
                cuts[-1] = cut
            else:
                cuts.append(cut)
        return cuts
