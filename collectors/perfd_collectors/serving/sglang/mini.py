"""mini-sglang's log: without metrics and periodic lines, only a benchmark's summary can be read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfd.analysis.serving import Distribution, Engine, Latency, ServerSetup, Snapshot
from perfd_collectors.serving.log_text import ANSI, number

_LINE = re.compile(r"\[\d{4}-\d\d-\d\d\|\d\d:\d\d:\d\d\|[^\[\]]*\]\s+[A-Z]+\s+(?P<rest>.*)")
_LATENCY = re.compile(
    r"(?P<name>TTFT|TPOT|E2E):\s+(?P<mean>\d{1,15}(?:\.\d{0,15})?) (?P<unit>ms|s) \((?P<rest>[^()]*)\)"
)
_QUANTILE = re.compile(r"(p50|p90|p99): (\d{1,15}(?:\.\d{0,15})?)(?: (ms|s))?")
_THROUGHPUT = re.compile(r"Throughput:\s+([\d.]+) token/s")
_IDLE = "Scheduler is idle"
_NAMES = {"TTFT": Latency.TTFT, "TPOT": Latency.TPOT, "E2E": Latency.E2E}


@dataclass(slots=True)
class MiniSglangLog:
    """Parses lines in order; `snapshot` holds the resulting state."""

    info: ServerSetup | None = None
    lines: int = 0
    unrecognized: int = 0
    _idle: bool = False
    _throughput: float | None = None
    _latencies: dict[str, Distribution] = field(default_factory=dict)

    def line(self, text: str) -> bool:
        """Parse one line; returns whether it is mini-sglang's."""
        match = _LINE.search(ANSI.sub("", text))
        if match is None:
            return False
        self.lines += 1
        rest = match["rest"]
        self._idle = rest.startswith(_IDLE)
        latency, throughput = _LATENCY.search(rest), _THROUGHPUT.search(rest)
        if latency is not None:
            self._latencies[_NAMES[latency["name"]]] = _distribution(latency)
        elif throughput is not None:
            self._throughput = number(throughput[1])
        return True

    def snapshot(self) -> Snapshot | None:
        """The state in the log; None when it is not mini-sglang's."""
        if not self.lines:
            return None
        return Snapshot(
            engine=Engine.MINI_SGLANG,
            running_requests=0.0 if self._idle else None,
            queued_requests=0.0 if self._idle else None,
            reported_generation_tokens_per_s=self._throughput,
            latencies=dict(self._latencies),
            reports_rates=True,
        )


def _distribution(match: re.Match[str]) -> Distribution:
    scale = {"ms": 1e-3, "s": 1.0}
    default = match["unit"]
    quantiles = {
        name: float(value) * scale[unit or default] for name, value, unit in _QUANTILE.findall(match["rest"])
    }
    return Distribution(
        p50=quantiles.get("p50"),
        p90=quantiles.get("p90"),
        p99=quantiles.get("p99"),
        mean=float(match["mean"]) * scale[default],
    )
