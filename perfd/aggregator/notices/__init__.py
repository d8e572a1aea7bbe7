"""What an aggregator sends to agents so that they send batches more or less often."""

from perfd.aggregator.notices.agent_notices import AgentNotices, Notify

__all__ = ["AgentNotices", "Notify"]
