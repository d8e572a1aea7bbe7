"""The statistics lines in vLLM's log, V0 and V1 to 0.33, as a snapshot: one each 10 s of work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfd.analysis.serving import Engine, ReplicaLoad, ServerSetup, Snapshot, from_arguments
from perfd_collectors.serving.log_text import ANSI, arguments, number, parts

_STATISTICS = re.compile(
    r"(?:Engine (?P<engine>\d+): |\d+ Engines Aggregated: )?(?P<parts>Avg prompt throughput: .*)"
)
_SPECULATION = re.compile(r"SpecDecoding metrics: (?P<parts>.*)")
_CONFIGURATION = re.compile(
    r"Initializing an? (?:V\d )?LLM engine \(v(?P<version>[^)]+)\) with config: (?P<rest>.*)"
)
_WORDS = ("Avg prompt throughput", "SpecDecoding", "LLM engine", "MFU: ")
_USE = re.compile(r"(?:Engine (?P<engine>\d+): )?MFU: (?P<flops>[\d.]+) TF/s/(?:GPU|device) [\d.]+ GB/s")
"""0.15 and later with --enable-mfu-metrics, a line of its own. Its bytes are those read and written."""
_RATIO = re.compile(r"[\d.]+%")


@dataclass(slots=True)
class VllmLog:
    """Takes lines in their order; `snapshot` and `info` are what they amount to."""

    info: ServerSetup | None = None
    lines: int = 0
    unrecognised: int = 0
    _engines: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _speculation: Mapping[str, str] = field(default_factory=dict)
    _flops_per_s: dict[str, float] = field(default_factory=dict)

    def line(self, text: str) -> bool:
        """Take one line; whether it is vLLM's."""
        if not any(words in text for words in _WORDS):
            return False
        plain = ANSI.sub("", text).strip()
        use = _USE.search(plain)
        if use is not None and (tflops := number(use["flops"])) is not None:
            self._flops_per_s[use["engine"] or ""] = tflops * 1e12
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
            return use is not None
        said = parts(statistics["parts"])
        if number(said.get("Running")) is None:
            self.unrecognised += 1
            return False
        self.lines += 1
        self._engines[statistics["engine"] or ""] = said
        return True

    def snapshot(self) -> Snapshot | None:
        """The newest state of all engines, or None before the first statistics."""
        if not self._engines:
            return None
        engines = list(self._engines.values())
        used = [value for said in engines if (value := _kv_used(said)) is not None]
        hits = [value for said in engines if (value := number(said.get("Prefix cache hit rate"))) is not None]
        flops = list(self._flops_per_s.values())
        notes = []
        if self.unrecognised:
            notes.append(f"{self.unrecognised} lines look like statistics of another version of vLLM.")
        accepted, drafted = (number(self._speculation.get(key)) for key in ("Accepted", "Drafted"))
        return Snapshot(
            engine=Engine.VLLM,
            version=self.info.version if self.info else None,
            model=self.info.model if self.info else None,
            replicas=tuple(
                ReplicaLoad(
                    replica=name,
                    running_requests=number(said.get("Running")),
                    queued_requests=_waiting(said),
                    kv_cache_used_ratio=_kv_used(said),
                )
                for name, said in sorted(self._engines.items())
            ),
            running_requests=_sum(engines, "Running"),
            queued_requests=sum(_waiting(said) or 0.0 for said in engines),
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


def _kv_used(said: Mapping[str, str]) -> float | None:
    """The device's cache, whatever the version calls the device; not the one in the host's memory."""
    for key, value in said.items():
        if key.endswith("KV cache usage") and not key.startswith("CPU") and _RATIO.match(value):
            return number(value)
    return None


def _waiting(said: Mapping[str, str]) -> float | None:
    return number(said.get("Waiting", said.get("Pending")))


def _sum(engines: list[Mapping[str, str]], key: str) -> float | None:
    known = [value for said in engines if (value := number(said.get(key))) is not None]
    return sum(known) if known else None
