"""Collectives of JAX's traces: which HLO names them, which devices they join, and which of them are one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfd.formatting import rank_names
from perfd.trace.model.intervals import Ns
from perfd.trace.model.kernel_classes import collective_operation
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.model.rank_trace import Collective, GpuOperations, Message, RankTrace

_INSTRUCTION_SHIFT = 32
"""Between numbers of instructions: no file has so many runs of one."""
_MAX_SPARE, _MAX_CUT = 64, 2
"""Runs that one device has more than another at the edges of a profile, and that both lack of the other's."""
_TOGETHER_NS = 50_000
"""The kernels of one collective end within this on the devices of a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HloCollective:
    """A collective of a module, as all devices run it. Devices are by their numbers on the host."""

    groups: tuple[tuple[int, ...], ...]
    """Those that take part together, in order; none for a permutation."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Sender and receiver of each message of a permutation."""
    size_bytes: int | None = None
    """The whole message: of an all-gather what each has at the end, of a reduce-scatter at the start."""
    elements: int | None = None

    @property
    def devices(self) -> set[int]:
        """All that take part."""
        return {one for joined in (*self.groups, *self.pairs) for one in joined}


def described(
    operations: GpuOperations,
    hlo: Ns,
    instructions: Sequence[tuple[str, str]],
    device: int,
    known: Mapping[tuple[str, str], HloCollective],
) -> list[Collective]:
    """What HLO says of a device's communication: the kernel of an all-to-all is one that sends and receives.

    `hlo` is the index into `instructions` (module and name) of each operation, -1 where there is none.
    """
    meant = [collective_operation(name) for _, name in instructions]
    chosen = np.flatnonzero((operations.kind == OperationKind.COMMUNICATION) & (hlo >= 0))
    forms: dict[int, Collective] = {}
    for one in np.unique(hlo[chosen]).tolist():
        if meant[one] != "other" or instructions[one] in known:
            forms[one] = _form(meant[one], device, known.get(instructions[one]))
    return [
        replace(forms[one], operation=at)
        for at, one in zip(chosen.tolist(), hlo[chosen].tolist(), strict=True)
        if one in forms
    ]


def _form(name: str, device: int, known: HloCollective | None) -> Collective:
    if known is None:
        return Collective(operation=-1, name=name, group="")
    if known.pairs:
        ranks = tuple(sorted(known.devices))
        group = rank_names(ranks)
        messages = [
            Message(peer=to, sent=True, group=group) for sender, to in known.pairs if sender == device
        ]
        messages += [Message(peer=by, sent=False, group=group) for by, to in known.pairs if to == device]
        return Collective(
            operation=-1,
            name="sendrecv",
            group=group,
            group_ranks=ranks,
            size_bytes=known.size_bytes,
            messages=tuple(one for one in messages if one.peer != device),
        )
    ranks = next((group for group in known.groups if device in group), ())
    return Collective(
        operation=-1,
        name=name,
        group=rank_names(ranks) if ranks else "",
        group_ranks=ranks,
        size_bytes=known.size_bytes,
        elements=known.elements,
    )


def numbered_by_instruction(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """The traces of one file, whose clock is one, with a number for each run of a collective.

    Kernels of one instruction run in the same order on all devices, those of several on different streams
    may not. Where the profile began or ended within a step, devices have different runs: those that end
    together are one.
    """
    runs: dict[tuple[int, tuple[int, ...]], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, trace in enumerate(traces):
        for place, one in enumerate(trace.collectives):
            if one.group_ranks and not one.messages and trace.hlo is not None:
                runs[int(trace.hlo.name[one.operation]), one.group_ranks][at].append(place)
    numbers: list[dict[int, int]] = [{} for _ in traces]
    for (instruction, _), places in runs.items():
        ends = {at: _ends_ns(traces[at], mine) for at, mine in places.items()}
        longest = max(ends, key=lambda at: len(ends[at]))
        for at, mine in places.items():
            shift = _shift(ends[longest], ends[at])
            for number, place in enumerate(mine):
                # Numbers of one instruction do not reach those of the next, also if a few are negative.
                numbers[at][place] = (instruction + 1 << _INSTRUCTION_SHIFT) + number + shift
    return [
        replace(
            trace,
            collectives=[
                replace(one, sequence=found.get(place)) for place, one in enumerate(trace.collectives)
            ],
        )
        for trace, found in zip(traces, numbers, strict=True)
    ]


def renumbered(collectives: Sequence[Collective], ranks: Mapping[int | None, int]) -> list[Collective]:
    """With ranks of the capture in the place of the devices of a file."""
    forms: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {(): ((), "")}
    found = []
    for one in collectives:
        if one.group_ranks not in forms:
            members = tuple(sorted(ranks[device] for device in one.group_ranks if device in ranks))
            forms[one.group_ranks] = members, rank_names(members)
        members, group = forms[one.group_ranks]
        messages = tuple(
            replace(to, peer=ranks[to.peer], group=group) for to in one.messages if to.peer in ranks
        )
        found.append(replace(one, group_ranks=members, group=group, messages=messages))
    return found


def _ends_ns(trace: RankTrace, places: Sequence[int]) -> Ns:
    return trace.operations.end_ns[[trace.collectives[place].operation for place in places]]


def _shift(most: Ns, mine: Ns) -> int:
    """Which run of the device with most of them the first run of another one is.

    By place where the ends agree, as where the profile has whole runs; else where the ends agree best.
    """
    spare = len(most) - len(mine)
    if spare == 0 and _apart_ns(most, mine, 0) <= _TOGETHER_NS:
        return 0
    shifts = range(-_MAX_CUT, min(spare, _MAX_SPARE) + _MAX_CUT + 1)
    apart, best = min((_apart_ns(most, mine, shift), shift) for shift in shifts)
    return best if apart <= _TOGETHER_NS else 0


def _apart_ns(most: Ns, mine: Ns, shift: int) -> float:
    ours, theirs = mine[max(0, -shift) :], most[max(0, shift) :]
    common = min(len(ours), len(theirs))
    return float(np.median(np.abs(ours[:common] - theirs[:common]))) if common else float("inf")
