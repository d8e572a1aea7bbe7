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
    HISTORY_REPAIR_SUFFIX,
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
    JsonLinesConfig,
    MlflowConfig,
    MlflowTeam,
    OtlpConfig,
    RemoteWriteConfig,
    TeamConfig,
    TensorBoardConfig,
    WandbConfig,
    WandbTeam,
)
from perfd.config.gateway_config import GatewayConfig
from perfd.config.http_client_config import HttpClientConfig
from perfd.config.nats_config import (
    NatsConfig,
    NatsGatewayConfig,
    NatsGroupConfig,
    NatsListenConfig,
    NatsUplinkConfig,
)
from perfd.config.notification_config import (
    EmailReceiver,
    NotificationReceiver,
    NotificationsConfig,
    WebhookReceiver,
)
from perfd.config.object_storage_config import ObjectReadingConfig, ObjectStorageConfig
from perfd.config.page_links import PageLinksConfig, check_page_links
from perfd.config.unknown_keys import TlsConfig, unknown_keys

__all__ = [
    "HISTORY_REPAIR_SUFFIX",
    "AgentCaptureConfig",
    "AgentConfig",
    "AgentIdentityConfig",
    "AggregatorConfig",
    "AlertmanagerConfig",
    "AnalysisConfig",
    "CaptureProfile",
    "CollectorConfig",
    "EmailReceiver",
    "ExportersConfig",
    "GatewayConfig",
    "HistoryConfig",
    "HttpClientConfig",
    "JsonLinesConfig",
    "KinetoConfig",
    "KubernetesIdentityConfig",
    "MlflowConfig",
    "MlflowTeam",
    "NatsConfig",
    "NatsGatewayConfig",
    "NatsGroupConfig",
    "NatsListenConfig",
    "NatsUplinkConfig",
    "NodeDrainConfig",
    "NodesConfig",
    "NotificationReceiver",
    "NotificationsConfig",
    "ObjectReadingConfig",
    "ObjectStorageConfig",
    "OtlpConfig",
    "PageLinksConfig",
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
    "WebhookReceiver",
    "check_page_links",
    "load",
    "parse",
    "read_mapping",
    "unknown_keys",
]
