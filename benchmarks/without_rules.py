"""The configuration of replays whose summaries alone are judged."""

from __future__ import annotations

from perfd.config import AggregatorConfig, RulesConfig
from perfd.session.session_config import SessionConfig

WITHOUT_RULES = SessionConfig(aggregator=AggregatorConfig(rules=RulesConfig(builtin=False)))
"""No summary depends on alerts, and their rules take a sixth of a replay."""
