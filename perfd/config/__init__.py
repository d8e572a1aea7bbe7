"""Configuration types of each role, and reading of configuration files."""

from perfd.config.agent_config import (
    AgentCaptureConfig,
    AgentConfig,
    CollectorConfig,
    KinetoConfig,
    ServerConfig,
    SpoolConfig,
    UplinkConfig,
)
from perfd.config.aggregator_config import (
    AgentIdentityConfig,
    AggregatorConfig,
    AnalysisConfig,
    CaptureProfile,
    HistoryConfig,
    KubernetesIdentityConfig,
    NodeDrainConfig,
    NodesConfig,
    RulesConfig,
    WebhookConfig,
)
from perfd.config.config_file import load, parse, read_mapping
from perfd.config.exporter_config import (
    AlertmanagerConfig,
    ExportersConfig,
    HttpClientConfig,
    JsonLinesConfig,
    OtlpConfig,
    RemoteWriteConfig,
    TeamConfig,
    TensorBoardConfig,
    WandbConfig,
    WandbTeam,
)
from perfd.config.strict import TlsConfig
from perfd.config.unknown_keys import unknown_keys

__all__ = [
    "AgentCaptureConfig",
    "AgentConfig",
    "AgentIdentityConfig",
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
    "KubernetesIdentityConfig",
    "NodeDrainConfig",
    "NodesConfig",
    "OtlpConfig",
    "RemoteWriteConfig",
    "RulesConfig",
    "ServerConfig",
    "SpoolConfig",
    "TeamConfig",
    "TensorBoardConfig",
    "TlsConfig",
    "UplinkConfig",
    "WandbConfig",
    "WandbTeam",
    "WebhookConfig",
    "load",
    "parse",
    "read_mapping",
    "unknown_keys",
]
