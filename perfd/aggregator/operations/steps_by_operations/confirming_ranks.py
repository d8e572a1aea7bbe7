"""Whether pauses that show steps on one rank do so on another one, where operations are all of one size."""

from __future__ import annotations

from perfd.aggregator.operations.steps_by_operations.operation_stream import OperationStream
from perfd.model import CollectiveTimes


class ConfirmingRanks:
    """For each communicator, operation and peer, the operations of the first other rank that reports any."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str, int | None], tuple[int, OperationStream]] = {}

    def put(self, times: CollectiveTimes) -> None:
        """Add what another rank did."""
        rank, stream = self._streams.setdefault(
            (times.communicator, times.operation, times.peer),
            (times.rank, OperationStream(times.communicator, times.operation, times.sequences[0] - 1)),
        )
        if rank == times.rank:
            stream.put(times)

    def confirm(self, stream: OperationStream) -> bool:
        """Whether another rank's pauses show the same, if one reports any."""
        _, other = self._streams.get((stream.communicator, stream.operation, None), (None, None))
        return other is None or stream.ends_as(other)

    def clear(self) -> None:
        """Forget all."""
        self._streams.clear()
