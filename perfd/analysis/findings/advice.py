"""What to do about each cause: one text per cause, for live analysis and for traces.

A name in double brackets stands for options of the framework that runs (`framework_options`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfd.formatting import percent, rank_names

# Computation.

LARGER_KERNELS = (
    "Make the kernels larger: bigger micro-batches, fused attention, MLP and norms, less recomputation; FP8"
    " if the model tolerates it [[fp8]]."
)
TENSOR_CORES = (
    "Run matrix products on the tensor cores: in BF16 (`torch.autocast`), or in TF32"
    ' (`torch.set_float32_matmul_precision("high")`, if FP32 is not needed for all).'
)
FEWER_BYTES = (
    "Move fewer bytes per operation: fused attention, norms and optimizer, BF16 instead of FP32, less"
    " recomputation of cheap layers, and a larger micro-batch."
)
FUSE_ELEMENT_WISE = (
    "Fuse element-wise kernels: a compiler [[larger_launches]], or fused norm, dropout and optimizer; matrix"
    " operations are the smaller part of the computation."
)
SEE_INTO_GRAPHS = (
    "Capture with `nsys --cuda-graph-trace=node` to see the kernels inside graphs, or run without graphs,"
    " before changing kernels."
)
LARGEST_KERNELS = (
    "Analyze the largest kernels with ncu, and use FP8 if the GPU has it and the model tolerates it."
)
LARGEST_KERNELS_AMD = LARGEST_KERNELS.replace("ncu", "rocprof-compute")
OPTIMIZER = (
    "Shard the optimizer over the data-parallel group [[shard_optimizer]], use a fused optimizer"
    " [[fused_optimizer]], or accumulate gradients over more micro-batches [[accumulate]]."
)
SHARDED_OPTIMIZER = (
    "The optimizer is sharded already: use a fused one [[fused_optimizer]], or accumulate gradients over more"
    " micro-batches [[accumulate]]."
)
MEMORY_CAPACITY = (
    "Recompute activations [[recompute]], shard the optimizer [[shard_optimizer]], or use smaller"
    " micro-batches before a longer sequence runs out of memory."
)

# The host: launches, synchronization, copies, input.

LAUNCH_LESS = (
    "Launching the kernels takes longer than running them: use CUDA graphs or a compiler"
    " [[larger_launches]], fuse small kernels and the optimizer, enlarge the micro-batch, or take work off"
    " the launching thread."
)
AFTER_LAUNCH = (
    "Most of it is after the launch: what is launched waits for another stream, or the trace lacks records of"
    " what ran. `perfd trace table streams,idle` shows the gaps of each stream."
)
LONG_GAPS = (
    "Most of it is in gaps over 100 µs in which the host does something else: input, logging, Python's"
    " garbage collector, a lock. py-spy, or named ranges around the parts of a step, show what."
)
SYNCHRONIZATION = (
    "Remove synchronization from the step: .item(), .cpu(), printing tensors, barriers around timers,"
    " blocking copies."
)
HOST_BOUND = (
    "Take an Nsight Systems capture: it separates late launches from synchronization. CUDA graphs help"
    " against the first [[larger_launches]]; keep Python's garbage collector out of the step [[garbage]]."
)
RECORD_THE_HOST = "Record the host too (CPU activity, or the CUDA API): only that explains idle GPUs."
COPIES = (
    "Keep on the GPU what each step copies (offloaded optimizer or activations, input enlarged on the"
    " host), copy from pinned memory, and overlap copies with computation on a separate stream."
)
PINNED_COPIES = COPIES.replace(" copy from pinned memory, and overlap", " and overlap")
DEVICE_COPIES = (
    "Avoid copies within the GPU: `.contiguous()`, `.clone()`, concatenations and changes of layout; join the"
    " small ones."
)
PAGEABLE_COPIES = "Pin host memory (pin_memory=True) and copy with non_blocking=True."
SLOW_INPUT = (
    "Give the data loader more workers and prefetching [[loader]], keep the data on local disks, and move"
    " tokenization out of the training loop."
)
SEQUENCES = (
    "Balance the cost of sequences over data-parallel ranks and micro-batches: sort or pack them by the sum"
    " of squared lengths, and use fixed-length packing if the model allows it."
)

# Communication.

ARRIVES_LAST = "Communication is mostly waiting: find the rank that arrives last before tuning the network."
ALL_RANKS_FIRST = (
    "Get timings from all ranks first: neither overlap nor faster links help against waiting for a slow rank."
)
SENDS_OF_ONE_RANK = (
    "Most of it is sends and receives, as between pipeline stages, including the wait for the peer: analyze"
    " the traces of all ranks together to see which rank the others wait for."
)
OVERLAP_OR_SEND_LESS = (
    "Overlap communication with computation (gradient and parameter buckets, tensor-parallel overlap), or"
    " send less."
)
LARGER_MESSAGES = "Send more at a time: larger gradient buckets, and fewer, fused operations."
SLOW_COLLECTIVES = (
    "The collectives take over twice what the links allow: check the network and NCCL's topology."
)
LINKS_OF_GROUP = (
    "Check the links between these ranks: error and congestion counters of their NICs (perfd_nic_*), NVLink"
    " (nvidia-smi nvlink -e), and other users of the same switches. A restart on other nodes shows whether"
    " the location is the cause."
)
NVLINK_UNUSED = (
    "NCCL does not use NVLink here: look for NCCL_P2P_DISABLE, NCCL_P2P_LEVEL or a container that hides"
    " peers, and at the transports in NCCL_DEBUG=INFO; nvidia-smi nvlink -s shows links that are down."
)
LESS_TENSOR = "use less tensor parallelism if memory allows it, or overlap it [[overlap_tensor]]"
BY_DIMENSION: Mapping[str, str] = {
    "tp": f"Tensor-parallel groups have the most exposed communication: {LESS_TENSOR}",
    "pp": "Transfers between stages have the most exposed communication: interleave the schedule, which sends"
    " beside computation [[interleave]], or use fewer stages",
    "cp": "Context-parallel groups have the most exposed communication: keep them inside a node, exchange"
    " keys and values beside attention [[context]], or use less context parallelism"
    " if memory allows it",
    "ep": "The exchange of expert tokens has the most exposed communication: keep expert groups inside a"
    " node, or exchange beside computation [[overlap_experts]]",
    "world": "Collectives over all ranks have the most exposed communication: average losses, check"
    " gradients and wait at barriers less often [[no_barriers]]",
}
"""By parallel dimension; the expected gain follows."""
OVERLAP_GRADIENTS = (
    "Overlap gradient reduction with the backward pass [[overlap_gradients]], and the gathering of parameters"
    " with the forward pass [[overlap_parameters]]"
)
OVERLAPPED = "Gradients and parameters already move beside computation"
OVERLAP_PARAMETERS = (
    "Gradient reduction already overlaps with the backward pass; overlap the gathering of parameters too"
    " [[overlap_parameters]]"
)
CAPTURE_OVERLAP = (
    "A capture shows how much of it is exposed (`perfd capture start JOB`), before anything is changed."
)


def tensor_groups_over_nodes(tensor: int, gpus_per_node: int | None) -> str:
    """Tensor parallelism that is not in one node."""
    if gpus_per_node is not None and tensor <= gpus_per_node:
        return f"Place ranks so that each {tensor} in a row are on one node: they are one tensor group."
    of = "" if gpus_per_node is None else f" of {gpus_per_node} GPUs"
    return (
        f"Tensor parallelism of {tensor} crosses nodes{of}: keep it inside a node, and use pipeline or"
        " context parallelism between nodes."
    )


# Pipelines.

BALANCE_STAGES = (
    "Move layers away from the slowest stage [[balance_stages]]: the model is split unevenly, and no rank is"
    " at fault."
)
FILL_PIPELINE = "Use more micro-batches per step, or interleave the schedule [[interleave]]."


def copies_like(name: str) -> str:
    """Advice on copies of which the longest have this name, as PyTorch's profiler writes it."""
    if "Device -> Device" in name or "DeviceToDevice" in name:
        return DEVICE_COPIES
    return PINNED_COPIES if "Pinned" in name else COPIES


def fill_pipeline(stages: int, micro_batches: int, chunks: int) -> str:
    """The same with what theory expects of it, by the bubble of interleaved 1F1B."""
    more = _bubble(stages, 4 * micro_batches, chunks)
    interleaved = interleaved_bubble(stages, micro_batches, chunks)
    return (
        f"Use more micro-batches per step (theory: {percent(more)} with {4 * micro_batches} instead of"
        f" {micro_batches}), or interleave with {2 * chunks} model chunks per stage [[interleave]]"
        f" ({percent(interleaved)});"
        " fewer stages help too if memory allows it."
    )


def interleaved_bubble(stages: int, micro_batches: int, chunks: int) -> float:
    """What theory expects with twice the chunks, of the same step."""
    return _bubble(stages, micro_batches, 2 * chunks)


def _bubble(stages: int, micro_batches: int, chunks: int) -> float:
    return (stages - 1) / (chunks * micro_batches + stages - 1)


BALANCE_EXPERTS = (
    "Balance the router: a larger load-balancing loss [[balance_loss]], an expert bias [[expert_bias]], or a"
    " capacity [[expert_capacity]]; log tokens per expert [[expert_log]] to see which experts."
)


def changed(who: str, step: int) -> str:
    """A stage or rank that was as fast as the others until some step."""
    return (
        f"Look what changed for {who} at step {step}: the clock and heat of its GPUs, another process on its"
        " GPUs or CPUs, its data. The split of the model was even before, so leave it."
    )


# Hosts.

MORE_CPUS = (
    "Give the ranks of this node CPUs of their own: stop other processes on them (`top -H` shows them),"
    " start fewer threads (OMP_NUM_THREADS, the DataLoader's num_workers), and bind each rank to the cores"
    " next to its GPU (numactl, torchrun --numa-binding=node)."
)
HIGHER_CPU_LIMIT = (
    "Raise or remove the CPU limit of the container (Kubernetes: resources.limits.cpu; SLURM:"
    " --cpus-per-task), or start fewer threads (OMP_NUM_THREADS, num_workers)."
)
FASTER_STORAGE = (
    "Read the data from local NVMe or memory, read ahead with more DataLoader workers, and write checkpoints"
    " asynchronously; `iostat -x` shows which device is busy."
)
FREE_MEMORY = (
    "Free memory on the node (fewer or smaller DataLoader workers, no swap): pages of the process are read"
    " from storage again and again."
)

LATE_HOSTS = (
    "Check what hosts do at the start of a step and of its micro-batches: workers of the DataLoader, storage,"
    " tokenization, logging. A capture with CPU activity, or perfd.hook's phase around the next batch, shows"
    " whether it is data loading."
)
SLEEPING_HOSTS = (
    "A py-spy dump shows the line at which the main thread of a rank waits. If it reads its batches there,"
    " load them in worker processes, ahead of time [[loader]]."
)
PERIODIC_STALL = (
    "Look what happens then: Python's garbage collection (collect on all ranks in the same step [[garbage]],"
    " or gc.disable() and gc.collect() every N steps), logging, evaluation, a checkpoint, or a cron job; a"
    " py-spy dump during a stall shows the line."
)

# Ranks and nodes.

THROTTLING = (
    "Check cooling and the power limit of these GPUs (nvidia-smi -q -d PERFORMANCE), and take the node out of"
    " the job if it does not recover."
)
TIMERS_BY_RANK = "log timers by rank [[timers_by_rank]]"


def slow_host(*ranks: int) -> str:
    """Ranks whose GPUs idle more than their peers'."""
    return (
        f"Check the host of {rank_names(ranks)}: its input, its CPUs and the Python process (py-spy dump),"
        " compared with a peer."
    )


def slow_gpu(rank: int) -> str:
    """A rank whose GPU works longer than its peers'."""
    return (
        f"Check the GPU of rank {rank}: another process on it, its clock, or more work than its peers have; a"
        " capture of this rank and a peer shows which. Take the node out of the job if it persists."
    )


def slower_kernels(rank: int) -> str:
    """The same of a rank whose kernels are in a trace."""
    return (
        f"Compare the kernels of rank {rank} with a peer's: slower kernels point to the GPU (clock, heat,"
        " another process), more kernels to uneven work."
    )


def late_rank_seen(rank: int) -> str:
    """A rank of which a trace shows what it does longer than its peers."""
    return (
        f"Look at what rank {rank} does longer than its peers: py-spy shows what its host does, nvidia-smi"
        " the clock and other processes of its GPU."
    )


def late_rank(rank: int) -> str:
    """A rank that is late, and nothing shows why."""
    return (
        f"Capture rank {rank} and a peer: that shows whether its GPU computes longer or its host keeps it"
        " waiting."
    )


def late_ranks(ranks: Sequence[int]) -> str:
    """Ranks that are late together."""
    return (
        f"Capture {rank_names(ranks)}: the slow one computes while the others wait for it. Or"
        f" {TIMERS_BY_RANK}."
    )


def slow_node(node: str, ranks: Sequence[int]) -> str:
    """All ranks of a node are slower than those of others."""
    return (
        f"Check what ranks share on node {node}: power and cooling, CPU clocks, memory, its file system, and"
        f" other processes. A capture of {rank_names(ranks[:1])} and a peer on another node shows whether"
        " GPUs compute longer or hosts keep them waiting."
    )


def busy_gpu(rank: int | None) -> str:
    """A slow rank of which only the timer of the input shows a sign; None where it is not known which."""
    look = "another process on its GPU, a lower clock, and more work than its peers have."
    if rank is not None:
        return f"Check rank {rank} for {look}"
    return (
        "Find the rank: NCCL timings (perfd's plugin), GPM activity or timers by rank"
        f" [[timers_by_rank]] identify it. Then check it for {look}"
    )


def hanging_ranks(ranks: Sequence[int]) -> str:
    """Ranks that did not reach what the others wait for."""
    return (
        f"Check {rank_names(ranks)}: its process (py-spy dump shows where it stands), XID errors and the"
        " kernel log of its node. Restart from the last checkpoint without that node if it does not"
        " recover."
    )


HANG_ANYWHERE = (
    "Dump PyTorch's flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE) and take py-spy dumps of all ranks: the"
    " rank that stands elsewhere than the others is late."
)

# What perfd lacks.

AGENT_ON_EVERY_NODE = (
    "Run an agent on every node of the job, and check perfd_agent_up and perfd_collector_success of the"
    " nodes of these ranks."
)
LATE_AGENTS = (
    "Check whether agents of the nodes of these ranks get CPU time, and perfd_agent_up: what they send comes"
    " late."
)
GPUS_OF_ITS_OWN = "Give each job GPUs of its own, or run one after the other."
NAMES_OF_THEIR_OWN = (
    "Start each job with a `perfd run` of its own, so that perfd can distinguish their ranks."
)
ONE_NCCL = "Use one NCCL version, 2.27 or newer, and one perfd configuration on all nodes."
LASTING_COMMUNICATORS = (
    "Use the same process groups throughout the job: creating them takes time and hides which rank is late."
)
LOST_OPERATIONS = (
    "Check perfd_agent_up of the job's nodes, and whether their agents get CPU time: the plugin overwrites"
    " operations that are not read in time."
)
LONGER_RUN = (
    "Let the job run longer: {steps} steady steps are enough; the first step, checkpoints and evaluation do"
    " not count."
)
CAPTURE = "A capture (`perfd capture start JOB`) shows the kernels of a step, and what runs beside them."
PHASE_TIMERS = "Log phase timers [[phase_timers]], or time the phases of your own loop with perfd.hook."
MORE_TIMERS = (
    "Time what else a step does [[phase_timers]], in your own loop with phases and `batches` of perfd.hook."
)
NO_GPU = "If the job has GPUs, `perfd doctor` on its nodes shows why perfd does not see them."
STEP_TIMES = "Let the job run longer, print the time of a step, or report steps through perfd.hook."
NO_STEPS = (
    "Let the job print progress that perfd understands (`perfd parse LOG` shows what it reads), or report"
    " steps through perfd.hook."
)
IMPLAUSIBLE_MFU = "Compare the model's sizes and the GPU's peak with those that perfd assumes."
ANALYSIS_FAILED = "Report it with the traceback in the aggregator's log. Other jobs are not affected."
MORE_STEPS = "Wait for more steps."
GPUS_OF_ALL_RANKS = f"Let perfd read the GPUs of all ranks (NVML), load its NCCL plugin, or {TIMERS_BY_RANK}."


def capture_again(lost_ratio: float) -> str:
    """A profiler that lost GPU records of some ranks; `lost_ratio` is how many a rank may lose."""
    return (
        f"The profiler lost more than {percent(lost_ratio)} of these ranks' GPU records: their idle time is"
        " unknown, and their other times cover only what was recorded. Capture again, for a shorter time or"
        " with fewer ranks per session."
    )
