"""What the operations of each communicator, and of each dimension of a job, amount to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, Ints, Method
from perfd.analysis.data.robust_stats import highest, known, median, over_last
from perfd.analysis.layout import RankLocations
from perfd.analysis.operations.bandwidth_model import BandwidthModel, expected_of
from perfd.analysis.operations.bus_factor import bus_factor
from perfd.analysis.operations.communicator_waits import CommunicatorBatch
from perfd.model import TimingSource

_TINY_BYTES = 64 * 1024
"""A message so small is latency, not bandwidth."""
_MOST_GROUPS = 256
"""Communicators in a summary, those that take the most time."""
_RARELY = 0.1
"""Communicators that take so little of the time of the busiest one of their kind do not stand for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """How fast operations are, and what the links between their ranks allow."""

    bus_bytes_per_s: float | None
    """Median over operations that are large enough to be bound by bandwidth; of their transfer."""
    size_bytes: float | None = None
    """Median of these operations' messages, of all where none is that large."""
    expected_bus_bytes_per_s: float | None = None
    """What the links between its ranks allow; see `perfd.analysis.operations.bandwidth_model`."""
    expected_source: str | None = None
    latency_bound: bool | None = None
    """Whether messages of that size are too small for this bandwidth: latency is most of what they need."""
    latency_s: float | None = None
    """What an operation takes however small it is, as NCCL assumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclGroup(LinkUse):
    """One kind of operation on one communicator, over the operations that all ranks reported."""

    communicator: str
    group: str | None
    """`tp`, `cp`, `dp`, `dp_cp`, `ep`, `edp`, `pp` or `world`, by its members and the job's layout; None
    when they fit none."""
    operation: str
    ranks: Sequence[int]
    operations: int
    transfer_s: float | None
    """Median of an operation's transfer."""
    wait_ratio: float | None
    """Share of the time in these kernels, over all ranks, that is waiting."""
    last_rank: int | None
    """The rank that the others waited for most."""
    last_ratio: float | None
    """Its share of all waiting."""
    source: str = ""
    """Who recorded the operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclKind(LinkUse):
    """One kind of operation over all communicators of one dimension.

    `LinkUse` is of the communicator that takes most of the time, but `bus_bytes_per_s` the median of all.
    """

    group: str | None
    operation: str
    communicators: int
    transfer_s: float | None
    """Median over communicators of their median."""
    wait_ratio: float | None
    kernel_ratio: float | None
    """Share of all time that a rank of these groups spends in these kernels, waiting included: the mean."""
    method: Method | None = None
    """How NCCL does the largest of them; None if unreported."""


def kinds_of(stacks: Sequence[CommunicatorBatch], measures: Sequence[Measures]) -> tuple[NcclKind, ...]:
    """One entry a dimension and operation."""
    found = []
    for stack, of_stack in zip(stacks, measures, strict=True):
        kernel_ratio = np.nan_to_num(of_stack.kernel_ratio)
        for name in sorted(stack.distinct_names, key=str):
            members = stack.named(name)
            taken = np.where(members, kernel_ratio, -1.0)
            # Of one dimension there may be a communicator for data and one for a few numbers.
            chosen = members & (taken >= _RARELY * taken.max())
            found.append(
                NcclKind(
                    group=name,
                    operation=stack.operation,
                    communicators=int(members.sum()),
                    transfer_s=known(float(median(of_stack.transfer_s[chosen]))),
                    wait_ratio=known(float(median(of_stack.wait_ratio[chosen]))),
                    kernel_ratio=known(float(of_stack.kernel_ratio[chosen].mean())),
                    bus_bytes_per_s=known(float(median(of_stack.bus_bytes_per_s[chosen]))),
                    **_of_links(of_stack, int(np.argmax(taken))),
                    method=_method(stack, int(np.argmax(taken))),
                )
            )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Measures:
    """What the communicators of a stack amount to; NaN is unknown."""

    transfer_s: Floats
    wait_ratio: Floats
    bus_bytes_per_s: Floats
    kernel_ratio: Floats
    size_bytes: Floats
    expected: BandwidthModel
    latency_bound: Bools
    """False where unknown."""


def measures_of(stack: CommunicatorBatch, where: RankLocations) -> Measures:
    """What the communicators of a stack amount to."""
    result, ranks = stack.blames, stack.ranks.shape[1]
    waited = over_last(np.add, result.waited_s)
    total = result.transfer_s * ranks + waited
    large = np.where(stack.size_bytes >= _TINY_BYTES, stack.size_bytes, np.nan)
    # Mostly a communicator's messages are all alike.
    alike = large.size and (large == large[:, :1]).all()
    sizes = large[:, 0].copy() if alike else median(large, axis=1)
    expected = expected_of(stack, where)
    small = np.isnan(sizes)
    sizes[small] = median(stack.size_bytes[small], axis=1)
    bandwidth = bus_bandwidth_bytes_per_s(
        stack.operation,
        large,
        stack.parts.transfer_s,
        ranks,
    )
    return Measures(
        transfer_s=median(stack.parts.transfer_s, axis=1),
        wait_ratio=waited / np.where(total > 0, total, np.nan),
        bus_bytes_per_s=median(bandwidth, axis=1),
        kernel_ratio=over_last(np.add, stack.kernel_ratio) / ranks,
        size_bytes=sizes,
        expected=expected,
        latency_bound=expected.latency_bound(sizes),
    )


def bus_bandwidth_bytes_per_s(operation: str, size_bytes: Floats, transfer_s: Floats, ranks: int) -> Floats:
    """Bytes a second that each link of a ring would have to carry, by nccl-tests' convention.

    Uses the transfer, not a rank's own duration: with waiting in it, a slow rank would look like a slow
    network.
    `size_bytes` is the whole message's.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        bandwidth = size_bytes / transfer_s * bus_factor(operation, ranks)
        return np.where(transfer_s > 0, bandwidth, np.nan)


def groups_of(stacks: Sequence[CommunicatorBatch], measures: Sequence[Measures]) -> tuple[NcclGroup, ...]:
    """One entry a communicator and operation; of very many those that take most of the time."""
    if not stacks:
        return ()
    taken = np.concatenate([np.nan_to_num(one.kernel_ratio) for one in measures])
    chosen = np.sort(highest(taken, _MOST_GROUPS))
    rows = np.split(chosen, np.searchsorted(chosen, np.cumsum([len(stack.ranks) for stack in stacks[:-1]])))
    found, first = list[NcclGroup](), 0
    for stack, of_stack, own in zip(stacks, measures, rows, strict=True):
        found += _groups(stack, of_stack, own - first)
        first += len(stack.ranks)
    return tuple(found)


def _groups(stack: CommunicatorBatch, measures: Measures, rows: Ints) -> Iterator[NcclGroup]:
    of_all, caused = stack.collectives, stack.blames.caused_s[rows]
    totals, lasts, most = caused.sum(axis=1), caused.argmax(axis=1), caused.max(axis=1)
    of_rows = (rows, stack.ranks[rows], stack.blames.operations[rows], totals, lasts, most)
    for row, ranks, operations, total, last, of_last in zip(*(one.tolist() for one in of_rows), strict=True):
        yield NcclGroup(
            communicator=of_all.communicators[row],
            group=stack.names[row],
            operation=of_all.operation,
            ranks=tuple(ranks),
            operations=operations,
            transfer_s=known(measures.transfer_s.item(row)),
            wait_ratio=known(measures.wait_ratio.item(row)),
            bus_bytes_per_s=known(measures.bus_bytes_per_s.item(row)),
            last_rank=ranks[last] if total > 0 else None,
            last_ratio=of_last / total if total > 0 else None,
            source=recorder(of_all.sources[row], of_all.timings[row]),
            **_of_links(measures, row),
        )


def _method(stack: CommunicatorBatch, row: int) -> Method | None:
    methods = stack.collectives.methods
    return methods[row] if methods and methods[row].algorithm else None


class _OfLinks(TypedDict):
    size_bytes: float | None
    expected_bus_bytes_per_s: float | None
    expected_source: str | None
    latency_bound: bool | None
    latency_s: float | None


def _of_links(measures: Measures, row: int) -> _OfLinks:
    """What a communicator's links allow for the messages that it has."""
    expected, source = measures.expected, measures.expected.source(row)
    return {
        "size_bytes": known(measures.size_bytes.item(row)),
        "expected_bus_bytes_per_s": known(expected.bus_bytes_per_s.item(row)),
        "expected_source": source,
        "latency_bound": None if source is None else bool(measures.latency_bound[row]),
        "latency_s": known(expected.latency_s.item(row)),
    }


def recorder(source: str, timing: TimingSource) -> str:
    """Who recorded operations, and by whose clock, in words."""
    clock = ", by the proxy's clock" if timing is TimingSource.PROXY else ""
    return f"{source or 'nccl plugin'}{clock}"
