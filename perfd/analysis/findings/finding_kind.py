"""The kinds of findings: one set of the field's terms for live jobs, traces and servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum


class Kind(StrEnum):
    """What limits a training job; the last block, what slows a server down."""

    NONE = "none"
    """Nothing that perfd can see: the GPUs compute, and compute well."""
    COMPUTE_BOUND = "compute_bound"
    """Computation takes most of the time, at a low share of what the tensor cores can do."""
    MEMORY_BOUND = "memory_bound"
    """Kernels wait for the bandwidth of GPU memory, not for the tensor cores."""
    COMMUNICATION = "communication"
    """Exposed communication: no computation runs beside it."""
    PIPELINE_BUBBLE = "pipeline_bubble"
    """Pipeline stages wait for each other, as the schedule requires."""
    PIPELINE_IMBALANCE = "pipeline_imbalance"
    """Pipeline stages wait for each other because one has more work."""
    DATA_LOADING = "data_loading"
    OPTIMIZER = "optimizer"
    HOST_BOUND = "host_bound"
    """GPUs idle, and the data do not show whether late launches or synchronization cause it."""
    LAUNCH_BOUND = "launch_bound"
    """GPUs idle because the host launches too late, or kernels are too small to fill them."""
    SYNCHRONIZATION = "synchronization"
    """GPUs idle because the host waited for them before it launched more work."""
    HOST_TRANSFER = "host_transfer"
    """Exposed copies, most often between host and GPU memory."""
    MEMORY_CAPACITY = "memory_capacity"
    """GPU memory is nearly full."""
    STRAGGLER = "straggler"
    """One rank is slower than its peers, which wait for it."""
    THROTTLING = "throttling"
    """A thermal, power or hardware limit holds GPU clocks down."""
    TENSOR_OVER_NODES = "tensor_over_nodes"
    """Tensor-parallel groups lie over nodes, whose links are far slower than those inside."""
    SLOW_LINK = "slow_link"
    """Transfers of a group of ranks are slower than its links allow; no rank causes it."""
    SEQUENCE_IMBALANCE = "sequence_imbalance"
    """Sequences of unequal length make ranks late in turn; no rank causes it."""
    EXPERT_IMBALANCE = "expert_imbalance"
    """Experts of some ranks get more tokens; their hardware is not at fault."""
    HOST_CONTENTION = "host_contention"
    """Hosts launch late because their threads wait for a CPU, a quota, storage or memory."""
    GPU_CONTENTION = "gpu_contention"
    """Processes of another job run on the job's GPUs."""
    LATE_HOSTS = "late_hosts"
    """Steps became longer, and GPUs idle for it: data loading, or other work of the hosts."""
    PERIODIC_STALL = "periodic_stall"
    """Every so many steps, or seconds, a step takes longer."""
    HANG = "hang"
    """The job makes no progress."""
    MISSING_TELEMETRY = "missing_telemetry"
    """Some ranks report nothing, or only a part; what depends on all ranks is not judged."""
    ANALYSIS_FAILED = "analysis_failed"
    """perfd itself failed at this job, so nothing is known about it."""
    UNKNOWN = "unknown"

    LARGE_BATCH = "large_batch"
    """Decode is slow because KV reads of many or long sequences dominate its steps."""
    PREFILL_INTERFERENCE = "prefill_interference"
    LONG_PROMPTS = "long_prompts"
    KV_MEMORY = "kv_memory"
    UNUSED_KV_MEMORY = "unused_kv_memory"
    """Requests wait although the KV cache has room: a limit on running requests holds them back."""
    LOW_CACHE_HITS = "low_cache_hits"
    FEW_REQUESTS = "few_requests"
    CUDA_GRAPH = "cuda_graph"
    CPU_OVERHEAD = "cpu_overhead"
    QUEUEING = "queueing"
    REPLICA_IMBALANCE = "replica_imbalance"
    SPECULATION = "speculation"
    SLOW_DECODE = "slow_decode"
    SLOW_PREFILL = "slow_prefill"
    """Decode is slower than its batch allows, and no other finding explains it."""

    @property
    def short_name(self) -> str:
        """What tables and lists call it."""
        return _WORDS[self][0]

    @property
    def sentence(self) -> str:
        """The headline: a sentence without its full stop, since culprits may follow."""
        return _WORDS[self][1]

    @property
    def possible_sentence(self) -> str:
        """The headline where evidence is weak: `Communication may limit this job`."""
        return _LIMITS.sub("may limit this", self.sentence)


_LIMITS = re.compile(r"(?<!what )(?<!that )\blimits? this\b")

FAULTS = frozenset({Kind.HANG, Kind.STRAGGLER, Kind.THROTTLING, Kind.SLOW_LINK, Kind.LATE_HOSTS})
"""Something is broken, or has become slower, which comes before what the job's configuration costs."""

COMPUTATION = frozenset({Kind.NONE, Kind.COMPUTE_BOUND, Kind.MEMORY_BOUND})
"""What the GPUs do when nothing keeps them from computing."""

_WORDS: Mapping[Kind, tuple[str, str]] = {
    Kind.NONE: ("none", "perfd sees nothing that limits this job"),
    Kind.COMPUTE_BOUND: ("computation", "Computation limits this job"),
    Kind.MEMORY_BOUND: ("memory bandwidth", "GPU memory bandwidth limits this job"),
    Kind.COMMUNICATION: ("communication", "Communication limits this job"),
    Kind.PIPELINE_BUBBLE: ("pipeline bubble", "The pipeline bubble limits this job"),
    Kind.PIPELINE_IMBALANCE: ("pipeline imbalance", "Unequal pipeline stages limit this job"),
    Kind.DATA_LOADING: ("data loading", "Data loading limits this job"),
    Kind.OPTIMIZER: ("optimizer", "The optimizer limits this job"),
    Kind.HOST_BOUND: ("host", "The host limits this job"),
    Kind.LAUNCH_BOUND: ("kernel launches", "Kernel launches limit this job"),
    Kind.SYNCHRONIZATION: ("host synchronization", "Host synchronization limits this job"),
    Kind.HOST_TRANSFER: ("memory copies", "Memory copies limit this job"),
    Kind.MEMORY_CAPACITY: ("memory capacity", "GPU memory capacity limits this job"),
    Kind.STRAGGLER: ("straggler", "A straggler limits this job"),
    Kind.THROTTLING: ("throttling", "Throttled GPUs limit this job"),
    Kind.TENSOR_OVER_NODES: (
        "tensor parallelism over nodes",
        "Tensor parallelism over nodes limits this job",
    ),
    Kind.SLOW_LINK: ("slow link", "Slow links limit this job"),
    Kind.SEQUENCE_IMBALANCE: ("sequence imbalance", "Sequences of unequal length limit this job"),
    Kind.EXPERT_IMBALANCE: ("expert imbalance", "Unequal load of experts limits this job"),
    Kind.HOST_CONTENTION: ("host contention", "Contention on the host limits this job"),
    Kind.GPU_CONTENTION: ("GPU contention", "Another job on its GPUs limits this job"),
    Kind.LATE_HOSTS: ("late hosts", "Late hosts limit this job: data loading or other host work"),
    Kind.PERIODIC_STALL: ("periodic stall", "A periodic stall limits this job"),
    Kind.HANG: ("hang", "This job hangs"),
    Kind.MISSING_TELEMETRY: ("missing telemetry", "Missing telemetry hides what limits this job"),
    Kind.ANALYSIS_FAILED: ("analysis failed", "The analysis of this job failed"),
    Kind.UNKNOWN: ("unknown", "perfd can't yet tell what limits this job"),
    Kind.LARGE_BATCH: ("large batch", "A large batch slows decode down"),
    Kind.PREFILL_INTERFERENCE: ("prefill interference", "Prefill interrupts decode"),
    Kind.LONG_PROMPTS: ("long prompts", "Long prompts dominate TTFT"),
    Kind.KV_MEMORY: ("KV cache capacity", "KV cache capacity limits this server"),
    Kind.UNUSED_KV_MEMORY: ("unused KV cache", "Requests wait while the KV cache has room"),
    Kind.LOW_CACHE_HITS: ("low cache hits", "Few prompt tokens come from the prefix cache"),
    Kind.FEW_REQUESTS: ("few requests", "Too few requests run to use the GPUs"),
    Kind.CUDA_GRAPH: ("CUDA graphs", "Decode runs without CUDA graphs"),
    Kind.CPU_OVERHEAD: ("CPU overhead", "CPU overhead leaves the GPU idle"),
    Kind.QUEUEING: ("queueing", "Requests wait in the queue"),
    Kind.REPLICA_IMBALANCE: ("replica imbalance", "Replicas are unevenly loaded"),
    Kind.SPECULATION: ("speculation", "Speculative decoding does not pay"),
    Kind.SLOW_DECODE: ("slow decode", "Decode is slower than its batch allows"),
    Kind.SLOW_PREFILL: ("slow prefill", "The first token takes much longer than computing the prompt"),
}


_HARMLESS = frozenset(
    {Kind.NONE, Kind.UNKNOWN, Kind.COMPUTE_BOUND, Kind.MISSING_TELEMETRY, Kind.ANALYSIS_FAILED}
)


def limits_job(kind: str) -> bool:
    """Whether a kind of finding limits the job by something other than the job's own work."""
    return kind not in _HARMLESS
