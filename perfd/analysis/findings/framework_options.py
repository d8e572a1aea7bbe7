"""What each framework calls what an advice asks for: only options that the job has not set already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class OptionsOf(StrEnum):
    """Whose options an advice may name; the values are as reports write them."""

    MEGATRON = "Megatron-LM"
    DEEPSPEED = "DeepSpeed"
    HF_TRAINER = "Trainer"
    LIGHTNING = "Lightning"
    FSDP = "FSDP2"
    DDP = "DDP"
    JAX = "JAX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What runs a job, if known."""

    framework: OptionsOf | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    """As the job printed them; empty when it did not."""


_NAMES: Mapping[str, OptionsOf] = {
    "megatron": OptionsOf.MEGATRON,
    "deepspeed": OptionsOf.DEEPSPEED,
    "hf-trainer": OptionsOf.HF_TRAINER,
    "lightning": OptionsOf.LIGHTNING,
    "torchtitan": OptionsOf.FSDP,
    "jax": OptionsOf.JAX,
    "maxtext": OptionsOf.JAX,
}
"""By the beginning of a log's framework. One that is not here has other options: none is named."""
_LOOPS = frozenset({"", "perfd.hook", "training-loop", "nanogpt", "nanochat", "litgpt", "torchtune"})
"""Custom loops, which use PyTorch's FSDP or DDP."""
_SHARDED = frozenset({"ReduceScatter", "AllGather"})

_LOADER = "DataLoader(num_workers=, prefetch_factor=, persistent_workers=True)"
_XLA_OVERLAP = "--xla_gpu_enable_latency_hiding_scheduler=true"

_OPTIONS: Mapping[str, Mapping[OptionsOf, tuple[str, ...]]] = {
    "overlap_gradients": {
        OptionsOf.MEGATRON: ("--overlap-grad-reduce",),
        OptionsOf.DEEPSPEED: ("zero_optimization.overlap_comm",),
        OptionsOf.HF_TRAINER: ("ddp_bucket_cap_mb", "ddp_find_unused_parameters=False"),
        OptionsOf.LIGHTNING: ("DDPStrategy(bucket_cap_mb=, static_graph=True)",),
        OptionsOf.FSDP: ("set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch"),
        OptionsOf.DDP: ("bucket_cap_mb", "gradient_as_bucket_view=True", "static_graph=True"),
        OptionsOf.JAX: (_XLA_OVERLAP,),
    },
    "overlap_parameters": {
        OptionsOf.MEGATRON: ("--use-distributed-optimizer", "--overlap-param-gather"),
        OptionsOf.DEEPSPEED: ("zero_optimization.stage3_prefetch_bucket_size",),
        OptionsOf.FSDP: ("set_modules_to_forward_prefetch", "fully_shard(reshard_after_forward=False)"),
        OptionsOf.JAX: (_XLA_OVERLAP, "--xla_gpu_enable_pipelined_all_gather=true"),
    },
    "accumulate": {
        OptionsOf.DEEPSPEED: ("gradient_accumulation_steps",),
        OptionsOf.HF_TRAINER: ("gradient_accumulation_steps",),
        OptionsOf.LIGHTNING: ("Trainer(accumulate_grad_batches=)",),
        OptionsOf.FSDP: ("set_requires_gradient_sync(False)",),
        OptionsOf.DDP: ("no_sync()",),
    },
    "shard_optimizer": {
        OptionsOf.MEGATRON: ("--use-distributed-optimizer",),
        OptionsOf.DEEPSPEED: ("zero_optimization.stage",),
        OptionsOf.HF_TRAINER: ("fsdp",),
        OptionsOf.DDP: ("ZeroRedundancyOptimizer",),
    },
    "fused_optimizer": {
        OptionsOf.HF_TRAINER: ('optim="adamw_torch_fused"',),
        OptionsOf.FSDP: ("AdamW(fused=True)",),
        OptionsOf.DDP: ("AdamW(fused=True)",),
        OptionsOf.LIGHTNING: ("AdamW(fused=True)",),
    },
    "overlap_tensor": {OptionsOf.MEGATRON: ("--sequence-parallel", "--tp-comm-overlap")},
    "interleave": {OptionsOf.MEGATRON: ("--num-layers-per-virtual-pipeline-stage",)},
    "context": {OptionsOf.MEGATRON: ("--cp-comm-type p2p",)},
    "overlap_experts": {OptionsOf.MEGATRON: ("--overlap-moe-expert-parallel-comm",)},
    "no_barriers": {OptionsOf.MEGATRON: ("--no-barrier-with-level-1-timing",)},
    "balance_stages": {
        OptionsOf.MEGATRON: (
            "--decoder-first-pipeline-num-layers",
            "--decoder-last-pipeline-num-layers",
            "--account-for-embedding-in-pipeline-split",
            "--account-for-loss-in-pipeline-split",
        )
    },
    "loader": {
        OptionsOf.MEGATRON: ("--num-workers",),
        OptionsOf.DEEPSPEED: (_LOADER,),
        OptionsOf.HF_TRAINER: ("dataloader_num_workers", "dataloader_prefetch_factor"),
        OptionsOf.LIGHTNING: (_LOADER,),
        OptionsOf.FSDP: (_LOADER,),
        OptionsOf.DDP: (_LOADER,),
        OptionsOf.JAX: ("grain_worker_count",),
    },
    "larger_launches": {
        OptionsOf.MEGATRON: ("--enable-cuda-graph",),
        OptionsOf.HF_TRAINER: ("torch_compile=True",),
        OptionsOf.LIGHTNING: ("torch.compile",),
        OptionsOf.FSDP: ('torch.compile(mode="reduce-overhead")',),
        OptionsOf.DDP: ('torch.compile(mode="reduce-overhead")',),
        OptionsOf.JAX: ("--xla_gpu_enable_command_buffer",),
    },
    "balance_loss": {
        OptionsOf.MEGATRON: ("--moe-router-load-balancing-type aux_loss", "--moe-aux-loss-coeff"),
    },
    "expert_bias": {OptionsOf.MEGATRON: ("--moe-router-enable-expert-bias",)},
    "expert_capacity": {OptionsOf.MEGATRON: ("--moe-expert-capacity-factor",)},
    "expert_log": {OptionsOf.MEGATRON: ("--moe-per-layer-logging",)},
    "garbage": {OptionsOf.MEGATRON: ("--manual-gc",)},
    "fp8": {
        OptionsOf.MEGATRON: ("--fp8-format hybrid",),
        OptionsOf.JAX: ("quantization=fp8",),
    },
    "recompute": {
        OptionsOf.MEGATRON: ("--recompute-activations",),
        OptionsOf.DEEPSPEED: ("activation_checkpointing",),
        OptionsOf.HF_TRAINER: ("gradient_checkpointing=True",),
        OptionsOf.LIGHTNING: ("torch.utils.checkpoint",),
        OptionsOf.FSDP: ("torch.utils.checkpoint",),
        OptionsOf.DDP: ("torch.utils.checkpoint",),
        OptionsOf.JAX: ("jax.checkpoint",),
    },
    "phase_timers": {
        OptionsOf.MEGATRON: ("--timing-log-level 2", "--log-throughput"),
        OptionsOf.DEEPSPEED: ("wall_clock_breakdown",),
    },
    "timers_by_rank": {OptionsOf.MEGATRON: ("--timing-log-option all",)},
}
"""By what an advice names in double brackets. Of a framework without an entry it is said in general words."""
_PLACE = re.compile(r"\s?\[\[(\w+)\]\]")
_UNSET = frozenset({"", "none", "false", "0"})
_OPPOSITES: Mapping[str, str] = {"no_barrier_with_level_1_timing": "barrier_with_L1_time"}
"""Options that set an argument of another name to False."""
_COUNTS = frozenset(
    {"num_workers", "dataloader_num_workers", "dataloader_prefetch_factor", "gradient_accumulation_steps"}
)
"""Arguments that are never set for good: there may be more of it."""


def software_of(framework: str | None, arguments: Mapping[str, str], operations: Iterable[str]) -> Software:
    """What runs a job: by its log's framework, else by the collectives of a PyTorch loop."""
    name = (framework or "").lower()
    known = next((one for start, one in _NAMES.items() if name.startswith(start)), None)
    if known is None and name in _LOOPS:
        seen = set(operations)
        if seen >= _SHARDED:
            known = OptionsOf.FSDP
        elif "AllReduce" in seen:
            known = OptionsOf.DDP
    return Software(framework=known, arguments=arguments)


def fitted(advice: str, software: Software) -> str:
    """The advice with options of that framework that are not set yet, in parentheses, for each `[[name]]`."""

    def options(found: re.Match[str]) -> str:
        left = unset_options(found[1], software)
        return f" ({software.framework}: {', '.join(left)})" if left else ""

    return _PLACE.sub(options, advice)


def unset_options(name: str, software: Software) -> tuple[str, ...]:
    """The options of that framework under that name which the job has not set; empty where none is known."""
    known = _of_framework(name, software)
    return tuple(shown for option in known if (shown := _unset(option, software.arguments)))


def is_set(name: str, software: Software) -> bool:
    """Whether the job has set all that its framework has under that name; False where that is not known."""
    return bool(_of_framework(name, software)) and not unset_options(name, software)


def _of_framework(name: str, software: Software) -> tuple[str, ...]:
    return () if software.framework is None else _OPTIONS[name].get(software.framework, ())


def _unset(option: str, arguments: Mapping[str, str]) -> str | None:
    """The option as an advice shows it; None where the job's arguments say that it is set."""
    name, _, wanted = re.sub(r"[ =(]", "=", option.removeprefix("--"), count=1).partition("=")
    key = name.replace("-", "_")
    value = arguments.get(key, arguments.get(name))
    if (opposite := arguments.get(_OPPOSITES.get(key, ""))) is not None:
        value = str(opposite.lower() in _UNSET)
    if value is None or value.lower() in _UNSET or (wanted and wanted.strip('"').lower() != value.lower()):
        return option
    return f"{option}, now {value}" if key in _COUNTS else None
