"""What an operator may configure, one type per role, and how a file of it is read."""

from perfd.config.agent import (
    AgentCaptureConfig,
    AgentConfig,
    CollectorConfig,
    KinetoConfig,
    ServerConfig,
    SpoolConfig,
    UplinkConfig,
)
from perfd.config.aggregator import (
    AggregatorConfig,
    AnalysisConfig,
    CaptureProfile,
    HistoryConfig,
    RulesConfig,
    WebhookConfig,
)
from perfd.config.base import TlsConfig
from perfd.config.exporters import (
    AlertmanagerConfig,
    ExportersConfig,
    HttpClientConfig,
    JsonLinesConfig,
    RemoteWriteConfig,
    TensorBoardConfig,
    WandbConfig,
)
from perfd.config.keys import unknown_keys
from perfd.config.reading import load, parse, read_mapping

__all__ = [
    "AgentCaptureConfig",
    "AgentConfig",
    "AggregatorConfig",
    "AlertmanagerConfig",
    "AnalysisConfig",
    "CaptureProfile",
    "CollectorConfig",
    "ExportersConfig",
    "HistoryConfig",
    "HttpClientConfig",
    "JsonLinesConfig",
    "KinetoConfig",
    "RemoteWriteConfig",
    "RulesConfig",
    "ServerConfig",
    "SpoolConfig",
    "TensorBoardConfig",
    "TlsConfig",
    "UplinkConfig",
    "WandbConfig",
    "WebhookConfig",
    "load",
    "parse",
    "read_mapping",
    "unknown_keys",
]
