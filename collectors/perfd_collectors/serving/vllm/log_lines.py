"""The statistics lines in vLLM's log, V0 and V1 to 0.33, as a snapshot: printed every 10 s while busy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfd.analysis.serving import Engine, ReplicaLoad, ServerSetup, Snapshot, from_arguments
from perfd_collectors.serving.log_text import ANSI, arguments, number, parts

_STATISTICS = re.compile(
    r"(?:Engine (?P<engine>\d{1,9}): |\d{1,9} Engines Aggregated: )?(?P<parts>Avg prompt throughput: .*)"
)
_SPECULATION = re.compile(r"SpecDecoding metrics: (?P<parts>.*)")
_CONFIGURATION = re.compile(
    r"Initializing an? (?:V\d )?LLM engine \(v(?P<version>[^()]+)\) with config: (?P<rest>.*)"
)
_MARKERS = ("Avg prompt throughput", "SpecDecoding", "LLM engine", "MFU: ")
_FLOPS = re.compile(r"(?:Engine (?P<engine>\d+): )?MFU: (?P<flops>[\d.]+) TF/s/(?:GPU|device) [\d.]+ GB/s")
"""A separate line in 0.15 and later with --enable-mfu-metrics. Its bytes are read plus written."""
_RATIO = re.compile(r"[\d.]+%")


@dataclass(slots=True)
class VllmLog:
    """Parses lines in order; `snapshot` and `info` hold the resulting state."""

    info: ServerSetup | None = None
    lines: int = 0
    unrecognized: int = 0
    _engines: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _speculation: Mapping[str, str] = field(default_factory=dict)
    _flops_per_s: dict[str, float] = field(default_factory=dict)

    def line(self, text: str) -> bool:
        """Parse one line; returns whether it is vLLM's."""
        if not any(marker in text for marker in _MARKERS):
            return False
        plain = ANSI.sub("", text).strip()
        flops = _FLOPS.search(plain)
        if flops is not None and (tflops := number(flops["flops"])) is not None:
            self._flops_per_s[flops["engine"] or ""] = tflops * 1e12
        configuration = _CONFIGURATION.search(plain)
        if configuration is not None:
            self.info = from_arguments(arguments(configuration["rest"]), configuration["version"])
            return True
        speculation = _SPECULATION.search(plain)
        if speculation is not None:
            self._speculation = parts(speculation["parts"])
            return True
        statistics = _STATISTICS.search(plain)
        if statistics is None:
            return flops is not None
        values = parts(statistics["parts"])
        if number(values.get("Running")) is None:
            self.unrecognized += 1
            return False
        self.lines += 1
        self._engines[statistics["engine"] or ""] = values
        return True

    def snapshot(self) -> Snapshot | None:
        """What the log shows of vLLM now, of all engines; None before the first statistics."""
        if not self._engines:
            return None
        engines = list(self._engines.values())
        used = [value for values in engines if (value := _kv_used(values)) is not None]
        hits = [
            value for values in engines if (value := number(values.get("Prefix cache hit rate"))) is not None
        ]
        flops = list(self._flops_per_s.values())
        notes = []
        if self.unrecognized:
            notes.append(f"{self.unrecognized} lines look like statistics of an unknown vLLM version.")
        accepted, drafted = (number(self._speculation.get(key)) for key in ("Accepted", "Drafted"))
        return Snapshot(
            engine=Engine.VLLM,
            version=self.info.version if self.info else None,
            model=self.info.model if self.info else None,
            replicas=tuple(
                ReplicaLoad(
                    replica=name,
                    running_requests=number(values.get("Running")),
                    queued_requests=_waiting(values),
                    kv_cache_used_ratio=_kv_used(values),
                )
                for name, values in sorted(self._engines.items())
            ),
            running_requests=_sum(engines, "Running"),
            queued_requests=sum(_waiting(values) or 0.0 for values in engines),
            kv_cache_used_ratio=sum(used) / len(used) if used else None,
            reported_generation_tokens_per_s=_sum(engines, "Avg generation throughput"),
            reported_prompt_tokens_per_s=_sum(engines, "Avg prompt throughput"),
            reported_prefix_hit_ratio=sum(hits) / len(hits) if hits else None,
            reported_flops_per_s_per_gpu=sum(flops) / len(flops) if flops else None,
            spec_accept_length=number(self._speculation.get("Mean acceptance length")),
            spec_accept_ratio=accepted / drafted if accepted is not None and drafted else None,
            reports_rates=True,
            notes=tuple(notes),
        )


def _kv_used(values: Mapping[str, str]) -> float | None:
    """Usage of the KV cache on the device, under the name of any version; not of the one in host memory."""
    for key, value in values.items():
        if key.endswith("KV cache usage") and not key.startswith("CPU") and _RATIO.match(value):
            return number(value)
    return None


def _waiting(values: Mapping[str, str]) -> float | None:
    return number(values.get("Waiting", values.get("Pending")))


def _sum(engines: list[Mapping[str, str]], key: str) -> float | None:
    known = [value for values in engines if (value := number(values.get(key))) is not None]
    return sum(known) if known else None
