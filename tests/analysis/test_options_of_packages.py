"""Options named in advice exist in the installed packages.

`PERFD_TORCH_PYTHON` names an interpreter with PyTorch, transformers, Lightning and JAX; `.ci/run` makes one.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from perfd.analysis.findings import OptionsOf
from perfd.analysis.findings.framework_options import option_table

PYTHON = os.environ.get("PERFD_TORCH_PYTHON", "")
INSTALLED = (OptionsOf.HF_TRAINER, OptionsOf.LIGHTNING, OptionsOf.FSDP, OptionsOf.DDP)
_LOOKUP = """
import dataclasses, inspect, json, sys
import torch._inductor, torch.utils.checkpoint, torch.utils.data
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

def takes(*called):
    return {name for one in called for name in inspect.signature(one).parameters}

fields = {one.name for one in dataclasses.fields(TrainingArguments)}
calls = {
    # What a strategy does not take itself it passes on.
    "DDPStrategy": takes(DDPStrategy, DistributedDataParallel), "Trainer": takes(Trainer),
    "DataLoader": takes(DataLoader), "AdamW": takes(AdamW), "fully_shard": takes(fully_shard),
    "torch.compile": takes(torch.compile), "torch.utils.checkpoint": takes(torch.utils.checkpoint.checkpoint),
    "ZeroRedundancyOptimizer": takes(ZeroRedundancyOptimizer), "set_requires_gradient_sync": {"False"},
}
values = {"optim": {one.value for one in OptimizerNames}, "mode": set(torch._inductor.list_mode_options())}

def exists(framework, option):
    name, _, inside = option.rstrip(")").partition("(")
    arguments = [one.strip() for one in (inside if inside else "").split(",") if one.strip()]
    if name in calls:
        known = calls[name]
        if name == "set_requires_gradient_sync" and not hasattr(FSDPModule, name):
            return False
    elif "(" in option:
        return hasattr(DistributedDataParallel, name)
    else:
        known, arguments = {"Trainer": fields}.get(framework, takes(DistributedDataParallel)), [option]
        if framework == "FSDP2" and hasattr(FSDPModule, option):
            return True
    for argument in arguments:
        key, _, value = argument.partition("=")
        value = value.strip('"')
        if key not in known or (value and key in values and value not in values[key]):
            return False
    return True

asked = json.load(sys.stdin)
print(json.dumps([pair for pair in asked if not exists(*pair)]))
"""


def _missing(asked: list[tuple[str, str]]) -> list[list[str]]:
    done = subprocess.run(
        [PYTHON, "-c", _LOOKUP],
        check=False,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.system
@pytest.mark.skipif(not PYTHON and not os.environ.get("CI"), reason="PERFD_TORCH_PYTHON names no interpreter")
def test_options_exist_in_the_packages_as_installed():
    assert PYTHON, "PERFD_TORCH_PYTHON must name an interpreter with PyTorch; .ci/run makes one"
    asked = [
        (framework.value, option)
        for by_framework in option_table().options.values()
        for framework in INSTALLED
        for option in by_framework.get(framework, ())
    ]
    unknown = [
        ("DDP", "bucket_cap_gb"),
        ("Trainer", 'optim="adamw_torch_fuse"'),
        ("FSDP2", "AdamW(fuse=True)"),
    ]

    assert _missing([*asked, *unknown]) == [list(pair) for pair in unknown]


@pytest.mark.system
@pytest.mark.skipif(not PYTHON and not os.environ.get("CI"), reason="PERFD_TORCH_PYTHON names no interpreter")
def test_xla_knows_the_flags():
    assert PYTHON, "PERFD_TORCH_PYTHON must name an interpreter with JAX; .ci/run makes one"
    flags = {
        option if "=" in option else f"{option}="
        for by_framework in option_table().options.values()
        for option in by_framework.get(OptionsOf.JAX, ())
        if option.startswith("--xla")
    }
    done = [
        subprocess.run(
            [PYTHON, "-c", "import jax; jax.devices(); jax.checkpoint"],
            env={**os.environ, "XLA_FLAGS": " ".join([*sorted(flags), *more]), "JAX_PLATFORMS": "cpu"},
            capture_output=True, text=True, timeout=300, check=False,
        )
        for more in ([], ["--xla_gpu_enable_nothing=true"])
    ]  # fmt: skip

    assert len(flags) >= 3
    assert done[0].returncode == 0, done[0].stderr
    assert "Unknown flag" in done[1].stderr
