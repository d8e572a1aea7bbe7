"""HLO modules as XLA's profiler puts them into an XSpace, and profiles of devices that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfd.protobuf_encoding import field as part
from perfd.protobuf_encoding import varint
from perfd.trace.readers.xplane import xplane_pb2 as pb
from tests.support.xplane import BASE_NS, event, plane

BF16, F32 = 16, 11


def number(of: int, value: int) -> bytes:
    """A field that is a number."""
    return varint(of << 3) + varint(value)


def packed(of: int, values: Sequence[int]) -> bytes:
    """A repeated field of numbers."""
    return part(of, b"".join(varint(value) for value in values))


def lists(*groups: Sequence[int]) -> bytes:
    """Replica groups one by one, as fields of an instruction."""
    return b"".join(part(49, packed(1, group)) for group in groups)


def device_list(*groups: Sequence[int]) -> bytes:
    """The same in a list of devices."""
    return part(87, b"".join(part(1, packed(1, group)) for group in groups))


def iota(count: int, size: int, dimensions: Sequence[int], order: Sequence[int] = ()) -> bytes:
    """Groups of a permuted range."""
    content = number(1, count) + number(2, size) + packed(3, dimensions) + packed(4, order)
    return part(87, part(2, content))


def mesh(
    sizes: Sequence[int], axes: Sequence[int | tuple[int, int, int]], devices: Sequence[int] = ()
) -> bytes:
    """Groups along axes of a mesh, each by its index, or a part of it: index, size before it, its size."""
    content = b"".join(part(1, part(1, f"a{at}".encode()) + number(2, size)) for at, size in enumerate(sizes))
    if devices:
        content += packed(2, devices)
    references = [
        number(1, one)
        if isinstance(one, int)
        else number(1, one[0]) + part(2, number(1, one[1]) + number(2, one[2]))
        for one in axes
    ]
    return part(93, part(1, content) + b"".join(part(2, one) for one in references))


def shape(sizes: Sequence[int], element: int = BF16) -> bytes:
    return number(2, element) + packed(3, sizes)


def instruction(
    name: str,
    opcode: str,
    groups: bytes = b"",
    *,
    result: bytes | None = None,
    channel: int = 1,
    global_ids: bool = True,
    calls: int | None = None,
) -> bytes:
    """Of a computation; by default of 1,024 x 1,024 elements of 2 bytes, with global numbers."""
    return part(
        2,
        part(1, name.encode())
        + part(2, opcode.encode())
        + part(3, shape((1024, 1024)) if result is None else result)
        + number(26, channel)
        + number(71, int(global_ids))
        + (number(38, calls) if calls is not None else b"")
        + groups,
    )


def module(
    name: str, *computations: Sequence[bytes], assignment: Sequence[Sequence[int]] = ((0,), (1,), (2,), (3,))
) -> bytes:
    """Computations are numbered from 1; `assignment` are a partition's replicas, by device."""
    content = part(1, name.encode())
    for at, instructions in enumerate(computations, 1):
        content += part(3, b"".join(instructions) + number(5, at))
    rows = b"".join(part(3, packed(1, row)) for row in assignment)
    return content + part(15, number(1, len(assignment[0])) + number(2, len(assignment)) + rows)


def metadata_plane(*modules: bytes) -> bytes:
    """The plane that holds the modules."""
    events = b""
    for at, one in enumerate(modules, 1):
        stat = number(1, 9) + part(6, part(1, one))
        events += part(4, number(1, at) + part(2, number(1, at) + part(2, b"module") + part(5, stat)))
    return part(1, part(2, b"/host:metadata") + events)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A kernel of an instruction of `jit_step` on one device."""

    hlo: str
    start_us: float
    end_us: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Of the devices of a host."""

    devices: Sequence[Sequence[Run]]
    modules: Sequence[bytes] = ()
    start_ns: int = BASE_NS
    """On the clock of the file."""
    started_ns: int | None = None
    """Wall time of the clock's zero, which newer files have."""

    def space(self) -> bytes:
        """The file."""
        return b"".join((
            metadata_plane(*self.modules),
            *(self._plane(at, runs) for at, runs in enumerate(self.devices)),
            self._task(),
        ))  # fmt: skip

    def _task(self) -> bytes:
        stat = b"" if self.started_ns is None else part(6, number(1, 1) + number(3, self.started_ns))
        named = part(5, number(1, 1) + part(2, number(1, 1) + part(2, b"profile_start_time")))
        return part(1, part(2, b"Task Environment") + stat + named)

    def _plane(self, device: int, runs: Sequence[Run]) -> bytes:
        names = {hlo: at for at, hlo in enumerate(dict.fromkeys(run.hlo for run in runs), 1)}
        line = pb.XLine(
            name="Stream #7(Compute)",
            timestamp_ns=self.start_ns,
            events=[
                event(
                    names[run.hlo],
                    round(run.start_us * 1000),
                    round((run.end_us - run.start_us) * 1000),
                    pb.XStat(metadata_id=1, str_value=run.hlo),
                    pb.XStat(metadata_id=20, str_value="jit_step"),
                )
                for run in runs
            ],
        )
        kernels = {
            at: pb.XEventMetadata(name="ncclDevKernel" if _communicates(hlo) else "fusion_1")
            for hlo, at in names.items()
        }
        return plane(f"/device:GPU:{device}", [line], kernels)


def _communicates(hlo: str) -> bool:
    return hlo.startswith(("all-", "reduce-scatter", "collective-"))


def collectives_in_each_form() -> bytes:
    """A plane with one of each."""
    forms = (
        lists((0, 2), (1, 3)),
        device_list((0, 2), (1, 3)),
        iota(2, 2, (2, 2), (1, 0)),
        mesh((2, 2), [0], (0, 2, 1, 3)),
        mesh((4,), [(0, 1, 2)]),
        part(52, number(1, 0) + number(2, 3)),
    )
    names = (
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "all-gather-start",
        "collective-permute",
    )
    inner = [
        instruction(f"{name}.1", name, form, result=number(2, 13) + part(4, shape((4,))) * 2)
        for name, form in zip(names, forms, strict=True)
    ]
    outer = [instruction("all-reduce.1-fusion", "fusion", calls=2)]
    return metadata_plane(module("jit_step", inner, inner[:1], outer))


def profile_with_hlo() -> bytes:
    """Two devices that run two of a module's collectives."""
    runs = [
        Run(hlo="all-reduce.1", start_us=1, end_us=9),
        Run(hlo="collective-permute.1", start_us=9, end_us=11),
    ]
    permute = part(52, number(1, 0) + number(2, 1)) + part(52, number(1, 1) + number(2, 0))
    instructions = [
        instruction("all-reduce.1", "all-reduce", mesh((2,), [0])),
        instruction("collective-permute.1", "collective-permute", permute),
    ]
    return Profile(
        devices=[runs, runs], modules=[module("jit_step", instructions, assignment=((0,), (1,)))]
    ).space()
