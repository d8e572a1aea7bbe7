"""What a simulated job is like, and what goes wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np


class Fault(StrEnum):
    """What goes wrong from the onset on."""

    NONE = "none"
    SLOW_CLOCK = "slow_clock"
    """All compute of a rank takes longer, by `strength`."""
    OTHER_WORK = "other_work"
    """A rank's GPU does other work before each step, `strength` of a clean step long."""
    SLOW_LOADER = "slow_loader"
    FORCED_SYNC = "forced_sync"
    """A rank's host stalls in every fifth step, by five times `strength` of a clean step."""
    TINY_KERNELS = "tiny_kernels"
    """A rank's host launches for so long that its GPU runs dry, in the middle of the forward pass."""
    LATE_ENTRY = "late_entry"
    """A rank comes late to the first collective of each step."""
    HANG = "hang"
    # From here on no rank is to blame.
    SLOW_LOADERS = "slow_loaders"
    """Input of all ranks takes `strength` of a clean step longer."""
    SLOW_LINK = "slow_link"
    """Transfers of all gradient groups, or of the first one, take 1 + `strength` times as long."""
    HEAVY_LAST_STAGE = "heavy_last_stage"
    SEQUENCES = "sequences"
    """Compute of each rank and step varies by `strength`, since sequences are of unequal length."""
    HICCUPS = "hiccups"
    """Hosts stall now and then, each another time: garbage collection, other tenants."""
    CHECKPOINT = "checkpoint"
    """Everybody stops for 20 steps, and rank 0 for longer."""
    MISSING_RANK = "missing_rank"
    """One rank's timings never come, and it is 20% slow: it must not be pinned on another."""


BLAMELESS = frozenset(list(Fault)[list(Fault).index(Fault.SLOW_LOADERS) :]) | {Fault.NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The distributions that a job's noise is drawn from: one set to tune by, another to report by."""

    name: str
    residuals: tuple[float, ...]
    """Relative deviations of step times from their local median, of recorded runs."""
    chip_sigma: float
    """How much GPUs of one type differ for good."""
    drift_sigma: float
    """Of a GPU's pace at its power limit."""
    drift_steps: float
    """How long such a deviation lasts."""
    hiccups_per_step: float
    """Of one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One job. Ranks are in Megatron's order, pipeline stages slowest."""

    seed: int
    world: World
    data: int = 2
    stages: int = 1
    tensor: int = 1
    context: int = 1
    experts: int = 1
    """Ranks that share the experts; a part of the data-parallel ones."""
    chunks: int = 1
    """Of the model in each stage: more are interleaved."""
    sharded_in_nodes: bool = False
    """Parameters are sharded over the GPUs of each node."""
    overlap: bool = True
    """Gradients are reduced while the backward pass runs, as by PyTorch's DDP."""
    step_s: float = 0.1
    """About, with nothing wrong."""
    buckets: int = 24
    micro_batches: int = 8
    transfer_ratio: float = 0.06
    """Of a step: the gradients' transfer."""
    gpu_samples: bool = True
    clocks_off_s: tuple[float, ...] = ()
    """Of the first nodes, beside what the clock of each is off."""
    fault: Fault = Fault.NONE
    strength: float = 0.0
    rank: int = 0
    onset_s: float = 20.0
    length_s: float = 50.0

    @property
    def ranks(self) -> int:
        return self.tensor * self.context * self.data * self.stages

    @property
    def in_dimensions(self) -> bool:
        """Whether it has others than data and stages."""
        groups = max(self.tensor, self.context, self.experts, self.chunks)
        return groups > 1 or self.sharded_in_nodes

    @property
    def truth(self) -> frozenset[int]:
        """Ranks to blame."""
        return frozenset() if self.fault in BLAMELESS else frozenset({self.rank})

    @property
    def may_be_blamed(self) -> frozenset[int]:
        """Ranks that it is no mistake to blame: one without timings may be told by its GPU's activity."""
        return frozenset({self.rank}) if self.fault is Fault.MISSING_RANK else self.truth

    @property
    def name(self) -> str:
        layout = f"dp{self.data}" + (f"pp{self.stages}" if self.stages > 1 else "")
        return f"{self.fault}-{self.strength:g}-{layout}-{self.seed}"


FAULTS = (
    *((Fault.SLOW_CLOCK, strength) for strength in (0.02, 0.05, 0.1, 0.2, 0.5)),
    *((Fault.OTHER_WORK, strength) for strength in (0.02, 0.05, 0.1, 0.2, 0.5)),
    *((fault, s) for fault in (Fault.SLOW_LOADER, Fault.FORCED_SYNC, Fault.TINY_KERNELS) for s in (0.1, 0.3)),
    *((Fault.LATE_ENTRY, strength) for strength in (0.1, 0.3)),
    (Fault.HANG, 0.0),
)
BLAMELESS_CASES = (
    *((Fault.NONE, 0.0) for _ in range(8)),
    (Fault.SLOW_LOADERS, 0.3),
    (Fault.SLOW_LINK, 2.0),
    (Fault.HEAVY_LAST_STAGE, 0.3),
    (Fault.SEQUENCES, 0.1),
    (Fault.SEQUENCES, 0.3),
    (Fault.HICCUPS, 0.3),
    (Fault.CHECKPOINT, 0.0),
    (Fault.MISSING_RANK, 0.2),
)
SHAPES = (
    {"data": 2, "step_s": 0.08},
    {"data": 2, "step_s": 0.6, "overlap": False, "buckets": 2},
    {"data": 4, "step_s": 0.25},
    {"data": 4, "stages": 2, "step_s": 0.5},
    {"data": 2, "stages": 4, "step_s": 0.8},
    {"data": 8, "step_s": 0.15},
    {"data": 8, "step_s": 1.6, "overlap": False, "buckets": 8},
    {"data": 16, "stages": 4, "step_s": 1.0},
    {"data": 64, "step_s": 0.5, "buckets": 12},
)


def scenarios(world: World, *, rounds: int, seed: int, most_ranks: int = 64) -> Iterator[Scenario]:
    """Each fault and blameless case in each round, every time on another shape, rank and seed."""
    random = np.random.default_rng(seed)
    shapes = [shape for shape in SHAPES if shape["data"] * shape.get("stages", 1) <= most_ranks]
    order = [(fault, strength) for _ in range(rounds) for fault, strength in (*FAULTS, *BLAMELESS_CASES)]
    turn = int(random.integers(len(shapes)))
    for number, (fault, strength) in enumerate(order):
        shape = shapes[(turn + number + number // len(shapes)) % len(shapes)]
        if fault is Fault.HEAVY_LAST_STAGE and shape.get("stages", 1) == 1:
            shape = next(one for one in shapes if one.get("stages", 1) > 1)
        scenario = Scenario(
            seed=int(random.integers(1 << 30)),
            world=world,
            fault=fault,
            strength=strength,
            gpu_samples=bool(random.integers(2)),
            **shape,  # type: ignore[arg-type]  # a table of shapes reads best
        )
        # Slow steps need time, or there are too few of them to judge by.
        yield replace(
            scenario,
            rank=int(random.integers(scenario.ranks)),
            onset_s=20.0 + 10 * scenario.step_s,
            length_s=50.0 + 20 * scenario.step_s,
        )
