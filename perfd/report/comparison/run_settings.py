"""What two runs were started with: how they differ, and whether they are runs of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from perfd.analysis.diagnosis import JobSummary
from perfd.formatting import UNKNOWN

RunSettings = Mapping[str, Mapping[str, str]]
"""Values as text, by area (`software`, `versions`, `layout`, `model`, `arguments`) and name."""

_SAME_MODEL = ("layers", "hidden_size", "ffn_size", "attention_heads", "kv_heads", "moe.experts")
"""What another model has otherwise; the length of a sequence or the vocabulary's padding may be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One setting that the two runs do not share; None where only the other has it."""

    area: str
    name: str
    a: str | None
    b: str | None


def settings_of(job: JobSummary) -> RunSettings:
    """What a job ran with, if known."""
    run = job.configuration
    software = {
        "framework": job.framework or None,
        "framework version": run.framework_version,
        "GPUs": ", ".join(run.gpu_names) or None,
        "precision": run.precision or job.efficiency.peak_precision,
    }
    recompute = {"recompute": run.recompute, "recompute_layers": run.recompute_layers}
    return {
        "software": _known(software.items()),
        "versions": dict(run.software),
        "layout": _known({**asdict(job.parallel), **recompute}.items()),
        "model": {} if run.model is None else _known(_flat(run.model)),
        "arguments": dict(run.arguments),
    }


def differences(a: RunSettings, b: RunSettings) -> Sequence[SettingDifference]:
    """All settings that differ, by area and name. Of an area that only one run reports, nothing is known."""
    return [
        SettingDifference(area=area, name=name, a=a[area].get(name), b=b[area].get(name))
        for area in a
        if a[area] and b.get(area)
        for name in sorted(a[area].keys() | b[area].keys())
        if a[area].get(name) != b[area].get(name)
    ]


def unrelated(a: RunSettings, b: RunSettings) -> str:
    """Why two runs are not of one model, as words; empty where nothing speaks against it."""
    for area, names in (("software", ("framework",)), ("model", _SAME_MODEL)):
        of_a, of_b = a.get(area) or {}, b.get(area) or {}
        if not (of_a and of_b):
            continue
        for name in names:
            one, other = of_a.get(name, UNKNOWN), of_b.get(name, UNKNOWN)
            if one != other and (area == "model" or UNKNOWN not in {one, other}):
                return f"{name.replace('_', ' ')} {one} and {other}"
    return ""


def _known(values: Any) -> dict[str, str]:  # noqa: ANN401  (pairs of a name and any plain value)
    return {name: str(value) for name, value in values if value is not None}


def _flat(shape: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401  (a dataclass of sizes)
    for name in shape.__dataclass_fields__:
        value = getattr(shape, name)
        if is_dataclass(value):
            yield from _flat(value, f"{name}.")
        else:
            yield f"{prefix}{name}", value
