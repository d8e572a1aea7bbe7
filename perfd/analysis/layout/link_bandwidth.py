"""How fast the links of a job's groups are, by layout and hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from perfd.analysis.data.job_data import JobData
from perfd.analysis.flops.gpu_peak_lookup import GpuPeak, PeakTable, find_gpu
from perfd.analysis.layout.rank_location import PORTS, LinkSpeeds
from perfd.model import GpuInfo, ParallelLayout


def data_parallel_link_bytes_per_s(
    parallel: ParallelLayout,
    infos: Sequence[GpuInfo],
    job: JobData,
    peaks: PeakTable,
    network_bytes_per_s: float | None,
) -> float | None:
    """One direction of the slowest link in a data-parallel group's ring, or None when it is unknown.

    In Megatron's order of ranks (tensor, context, data, pipeline) a group spans
    tp * cp * dp consecutive ranks; when they fit into a node the ring runs over
    NVLink, of which the table holds both directions, else over the network.
    """
    per_node = _gpus_per_node(job)
    if not (parallel.tp and parallel.dp and per_node):
        return None
    if parallel.tp * (parallel.cp or 1) * parallel.dp > per_node:
        return network_bytes_per_s
    rows = [find_gpu(peaks, name) for name in {info.name for info in infos}]
    speeds = [row.nvlink_bytes_per_s if row else None for row in rows]
    known = [speed for speed in speeds if speed is not None]
    return min(known) / 2 if known and len(known) == len(speeds) else None


def node_link_bytes_per_s(infos: Mapping[str, Sequence[GpuInfo]], peaks: PeakTable) -> dict[str, float]:
    """One direction of NVLink between any two GPUs of each node, for nodes where it joins them all.

    Cards with bridges (PCIe, NVL) are joined in pairs at most, and slices of a GPU not at all.
    """
    found = {}
    names = {info.name for gpus in infos.values() for info in gpus}
    speed_of = {name: _joined_bytes_per_s(find_gpu(peaks, name)) for name in names}
    for node, gpus in infos.items():
        speeds = [speed for info in gpus if not info.mig and (speed := speed_of[info.name])]
        if speeds and len(speeds) == len(gpus):
            found[node] = min(speeds)
    return found


def _joined_bytes_per_s(row: GpuPeak | None) -> float | None:
    if row is None or not row.nvlink_bytes_per_s or {"PCIe", "NVL"} & set(row.name.split()):
        return None
    return row.nvlink_bytes_per_s / 2


def speeds(job: JobData, peaks: PeakTable, network_bytes_per_s: float | None) -> LinkSpeeds:
    """What joins the GPUs of a job; `network_bytes_per_s` is a GPU's share if an operator configured it."""
    inside = node_link_bytes_per_s(job.gpu_infos, peaks)
    if network_bytes_per_s is not None:
        nodes = {key.node for key in job.gpu.gpus} | set(job.placements)
        return LinkSpeeds(
            inside_bytes_per_s=inside, network_bytes_per_s=dict.fromkeys(nodes, network_bytes_per_s)
        )
    shares = {
        node: total / gpus
        for node, total in job.ports_bytes_per_s.items()
        if (gpus := len({info.index for info in job.gpu_infos.get(node, ())}))
    }
    return LinkSpeeds(inside_bytes_per_s=inside, network_bytes_per_s=shares, network_source=PORTS)


def _gpus_per_node(job: JobData) -> int | None:
    counts = Counter(key.node for key in job.gpu.gpus)
    if not counts:
        counts = Counter({node: len(infos) for node, infos in job.gpu_infos.items()})
    return min(counts.values()) if counts else None
