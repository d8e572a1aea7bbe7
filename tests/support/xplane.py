"""An XSpace of XLA's profiler, made by hand."""

from __future__ import annotations

from collections.abc import Mapping

from perfd.protobuf_encoding import field
from perfd.trace.readers.xplane import xplane_pb2 as pb

_PLANE, _NAME, _LINE, _EVENTS, _STATS, _PLANE_STATS = 1, 2, 3, 4, 5, 6
_NOTHING: Mapping[int, str] = {}
BASE_NS = 1_700_000_000_000_000_000
STATS = {
    1: "hlo_op",
    2: "correlation_id",
    3: "hlo_category",
    4: "step_num",
    5: "dot.3",
    6: "occupancy",
    20: "hlo_module",
}


def plane(
    name: str,
    lines: list[pb.XLine],
    events: dict[int, pb.XEventMetadata],
    *,
    device: Mapping[int, str] = _NOTHING,
    stats: Mapping[int, str] = _NOTHING,
) -> bytes:
    """`device` are the plane's own stats, by the numbers of their names in `stats`."""
    parts = [field(_NAME, name.encode())]
    parts += [
        field(_PLANE_STATS, pb.XStat(metadata_id=key, str_value=value).SerializeToString())
        for key, value in device.items()
    ]
    # The metadata comes after the lines, as in no file of XLA's, but as any writer may do.
    parts += [field(_LINE, line.SerializeToString()) for line in lines]
    parts += [
        field(_EVENTS, pb.EventMetadataEntry(key=key, value=value).SerializeToString())
        for key, value in events.items()
    ]
    parts += [
        field(_STATS, pb.StatMetadataEntry(key=key, value=pb.XStatMetadata(name=value)).SerializeToString())
        for key, value in {**STATS, **stats}.items()
    ]
    return field(_PLANE, b"".join(parts))


def event(metadata: int, offset_ns: int, duration_ns: int, *stats: pb.XStat) -> pb.XEvent:
    return pb.XEvent(
        metadata_id=metadata, offset_ps=offset_ns * 1000, duration_ps=duration_ns * 1000, stats=stats
    )


def xplane_space(*, device: Mapping[int, str] = _NOTHING, stats: Mapping[int, str] = _NOTHING) -> bytes:
    """Two GPUs, of which the second only copies, and a host with two steps; see `plane`."""
    compute = pb.XLine(
        id=7,
        name="Stream #7(Compute)",
        timestamp_ns=BASE_NS + 50,
        events=[
            event(1, 0, 1_001, pb.XStat(metadata_id=1, ref_value=5), pb.XStat(metadata_id=2, int64_value=11)),
            event(2, 2_000, 500, pb.XStat(metadata_id=2, uint64_value=12)),
            pb.XEvent(metadata_id=1, num_occurrences=9, duration_ps=10**9),
        ],
    )
    copies = pb.XLine(name="Stream #8(MemcpyD2D)", timestamp_ns=BASE_NS + 100, events=[event(3, 7, 20)])
    derived = pb.XLine(name="XLA Modules", timestamp_ns=BASE_NS, events=[event(1, 0, 10_000)])
    names = {
        1: pb.XEventMetadata(name="nvjet_sm90_long", display_name="nvjet_sm90"),
        2: pb.XEventMetadata(name="kernel_9", stats=[pb.XStat(metadata_id=3, str_value="all-reduce fusion")]),
        3: pb.XEventMetadata(name="MemcpyD2D"),
        4: pb.XEventMetadata(name="train"),
    }
    steps = [
        event(4, 1_000 * n, 1_000, pb.XStat(metadata_id=4, str_value=str(n)), pb.XStat(metadata_id=6))
        for n in (0, 1)
    ]
    host = pb.XLine(name="python", timestamp_ns=BASE_NS, events=steps)
    return b"".join(
        (
            plane("/host:CPU", [host], names),
            plane("/device:GPU:0", [compute, derived], names, device=device, stats=stats),
            plane("/device:GPU:1", [copies], names, device=device, stats=stats),
            plane("Task Environment", [], {}),
        )
    )
