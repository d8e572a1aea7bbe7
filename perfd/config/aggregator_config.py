"""What an operator may configure of `perfd aggregator`."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfd.config.exporter_config import ExportersConfig
from perfd.config.strict import Strict, TlsConfig


class HistoryConfig(Strict, frozen=True):
    """What survives a restart of the aggregator."""

    path: str | None = None
    """An SQLite file; null keeps history in memory only."""
    retention_days: float = 30.0


class RulesConfig(Strict, frozen=True):
    """Which rules the embedded engine evaluates."""

    builtin: bool = True
    files: list[str] = []
    interval_s: float = 5.0


class AnalysisConfig(Strict, frozen=True):
    """How derived numbers are defined."""

    flops_convention: str = "megatron"
    """`megatron` (causal attention, as core 0.12 and later print it), `palm`, or `6n`."""
    window_steps: int = 50
    """Steady steps that live numbers are a median of."""
    gpu_peaks_file: str | None = None
    """A file in the form of `perfd/data/gpu_peaks.yaml`; its rows win over the built-in ones."""
    network_bytes_per_s: float | None = None
    """One direction of a GPU's share of the network between nodes (400 Gb/s: 5.0e+10); the ring needs it."""


class CaptureProfile(Strict, frozen=True):
    """What an alert's `capture: NAME` label starts."""

    tool: str | None = None
    """null: `capture_tool` for a job, and for a serving engine the engine's own profiler."""
    steps: int | None = 5
    max_duration_s: float = 30.0
    ranks: str = "all"
    """`all`, a list (`0,3,8-11`), or `alert` for the rank that the alert names."""
    cooldown_s: float = 1800.0
    max_per_hour: int = 4
    quorum_ratio: float = 0.0
    """Of the asked ranks: when fewer can be captured, the others are stopped too; 1: all or none."""


class WebhookConfig(Strict, frozen=True):
    """Where an Alertmanager tells of alerts that start captures: POST /api/v1/webhooks/alertmanager."""

    token_file: str | None = None
    """Holds the bearer token that the Alertmanager must show; null: no receiver."""


class AggregatorConfig(Strict, frozen=True):
    """`perfd aggregator --config FILE`."""

    listen: str = "127.0.0.1:9461"
    """gRPC, for agents."""
    tls: TlsConfig | None = None
    allow_plaintext: bool = False
    http_listen: str | None = "127.0.0.1:9460"
    """/metrics and /api/v1; null for none."""
    http_token_file: str | None = None
    """Holds the bearer token that lets a request change something; null: only this machine's may."""
    round_interval_s: float = 1.0
    """Between two rounds of analysis; /metrics, rules and exporters see numbers that are so old at most."""
    history: HistoryConfig = HistoryConfig()
    rules: RulesConfig = RulesConfig()
    analysis: AnalysisConfig = AnalysisConfig()
    capture_profiles: dict[str, CaptureProfile] = msgspec.field(
        default_factory=lambda: {
            "default": CaptureProfile(),
            "hang": CaptureProfile(tool="py_spy", steps=None),
            "flight_recorder": CaptureProfile(tool="flight_recorder", steps=None),
            "serving": CaptureProfile(steps=10),
        }
    )
    capture_tool: Literal["nsys", "kineto"] = "nsys"
    """What captures a job where a profile names no tool."""
    capture_reports: bool = True
    """Analyse the traces of captures that end, where this machine can read them."""
    webhook: WebhookConfig = WebhookConfig()
    exporters: ExportersConfig = ExportersConfig()
    job_forgotten_after_s: float = 3600.0
    """A job that sent nothing for so long leaves /metrics; history keeps it."""
