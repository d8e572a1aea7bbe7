"""What a job runs with: model, precision, software and its own options, for comparing it with another run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from perfd.analysis.data.job_data import JobData
from perfd.model import ModelShape, Recompute

HIDDEN = "(hidden)"
_SECRET = re.compile(
    r"(?i)(^|[_-])((api|access|private)[_-]?key|auth|token|secret|passw(or)?d|credentials?)$"
)
_NO_SECRET = frozenset({"", "None", "True", "False"})
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
"""User and password before the host of a URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfiguration:
    """A job's configuration by its log, its options and its GPUs; None where unknown."""

    framework_version: str | None = None
    """As the job's log has it."""
    software: Mapping[str, str] = field(default_factory=dict)
    """Versions by name as `JobDescription` has them: of framework, CUDA, NCCL, driver."""
    model: ModelShape | None = None
    precision: str | None = None
    recompute: Recompute | None = None
    recompute_layers: int | None = None
    gpu_names: Sequence[str] = ()
    """Names of the GPUs of its nodes, each once, sorted."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """All options that the job printed; values of secrets are `(hidden)`."""
    wandb_run: str | None = None
    """As `JobDescription` has it; two runs always differ in it."""


def configuration_of(job: JobData) -> RunConfiguration:
    """The configuration of a job; what it has not reported is None or empty."""
    names = tuple(sorted({info.name for infos in job.gpu_infos.values() for info in infos}))
    description = job.description
    if description is None:
        return RunConfiguration(gpu_names=names)
    return RunConfiguration(
        framework_version=description.framework_version,
        software=description.software,
        model=description.model,
        precision=description.precision or description.hlo_precision,
        recompute=description.recompute,
        recompute_layers=description.recompute_layers,
        gpu_names=names,
        arguments=_without_secrets(tuple(description.arguments.items())),
        wandb_run=description.wandb_run,
    )


# A job has hundreds of options, which stay as they are from round to round.
@lru_cache(maxsize=256)
def _without_secrets(arguments: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Options as everyone who may look at the page reads them."""
    return {name: _shown(name, value) for name, value in arguments}


def _shown(name: str, value: str) -> str:
    if _SECRET.search(name) and value not in _NO_SECRET:
        return HIDDEN
    return _IN_ADDRESS.sub(f"{HIDDEN}@", value) if "@" in value else value
