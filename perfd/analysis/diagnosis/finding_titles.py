"""What limits a job, in a sentence for each kind of finding."""

from __future__ import annotations

from collections.abc import Mapping

from perfd.analysis.diagnosis.findings import Kind

LIMITS: Mapping[Kind, str] = {
    Kind.NONE: "Nothing that perfd can see limits this job",
    Kind.COMPUTE: "Computation limits this job",
    Kind.PIPELINE_BUBBLE: "The pipeline's bubble limits this job",
    Kind.PIPELINE_IMBALANCE: "Unequal pipeline stages limit this job",
    Kind.COMMUNICATION: "Communication limits this job",
    Kind.DATA_LOADING: "Data loading limits this job",
    Kind.OPTIMIZER: "The optimizer limits this job",
    Kind.STRAGGLER: "A slow rank limits this job",
    Kind.THROTTLING: "Clocks that are held down limit this job",
    Kind.MEMORY: "Full memory limits this job",
    Kind.HOST_BOUND: "The host limits this job",
    Kind.LAUNCH_BOUND: "Late launches by the host limit this job",
    Kind.SYNC_BOUND: "Waiting of the host for the GPU limits this job",
    Kind.MEMORY_BOUND: "The bandwidth of the GPUs' memory limits this job",
    Kind.HOST_TRANSFER: "Copies between host and GPU limit this job",
    Kind.LINK_DEGRADATION: "Slow links limit this job",
    Kind.SEQUENCE_IMBALANCE: "Sequences of unequal length limit this job",
    Kind.HANG: "Nothing moves in this job",
    Kind.MISSING_TELEMETRY: "Ranks that say nothing hide what limits this job",
    Kind.ANALYSIS_FAILED: "The analysis of this job failed",
    Kind.UNKNOWN: "It is unknown what limits this job",
}
"""Without the full stop: who is to blame may follow."""
